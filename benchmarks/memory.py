"""Does a long run's memory grow? The shipped GRPO config, made small, for 200 epochs: resident memory after each epoch.

    python benchmarks/memory.py [--epochs 200] [--output memory.json] [--results RESULTS.md]

Two examples, four rollouts each, one update an epoch, a validation every tenth: everything that a run keeps by the step.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from speed.results import put

from nat_finetune.config.load import load_config
from nat_finetune.finetune import finetune, new_run
from nat_finetune.registry import Registry
from nat_finetune.report.progress import NullProgress

ROOT = Path(__file__).parents[1]
EARLY, GROWTH = 20, 0.05
"""The epoch that the last one is held against, and by how much it may have grown since."""


def resident_mib() -> float:
    """What this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class Watching(NullProgress):
    """Notes the memory after each step."""

    def __init__(self) -> None:
        self.mib: list[float] = []

    def step_finished(self, metrics: Mapping[str, Any]) -> None:
        """Look."""
        self.mib.append(resident_mib())


def overrides(folder: Path, epochs: int) -> list[str]:
    """The shipped config, made small."""
    data = ROOT / "workflows" / "tic_tac_toe" / "data"
    for split, count in (("train", 2), ("validation", 4)):
        with (data / f"game_{split}.jsonl").open() as lines:
            (folder / f"{split}.jsonl").write_text("".join(islice(lines, count)))
    return [
        f"eval.general.dataset.file_path={folder / 'train.jsonl'}",
        f"finetuning.validation.dataset.file_path={folder / 'validation.jsonl'}",
        "finetuning.validation.interval=10",
        "finetuning.test=null",
        f"finetuning.num_epochs={epochs}",
        "finetuning.examples_per_step=2",
        "finetuning.flat_patience=1000000",
        "trajectory_builders.groups.num_generations=4",
        "trainer_adapters.here.warmup_steps=0",
    ]


def measure(epochs: int) -> dict[str, Any]:
    """Run, and say what was held."""
    watching = Watching()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        registry = Registry.installed()
        config = ROOT / "configs" / "grpo_tic_tac_toe.yml"
        loaded = load_config(config, overrides(folder, epochs), registry=registry)
        asyncio.run(finetune(loaded, registry, new_run(loaded, folder), watching))
    early, last = watching.mib[min(EARLY, epochs) - 1], watching.mib[-1]
    return {"epochs": len(watching.mib), "early_mib": early, "last_mib": last, "growth": last / early - 1, "mib": watching.mib}


def table(found: dict[str, Any]) -> str:
    """Markdown."""
    shown = [1, 5, 10, EARLY, 50, 100, 150, found["epochs"]]
    places = [epoch for epoch in dict.fromkeys(shown) if epoch <= found["epochs"]]
    held = [f"{found['mib'][place - 1]:.1f}" for place in places]
    return "\n".join(
        [
            f"| after epoch | {' | '.join(map(str, places))} |",
            "|" + " --- |" * (len(places) + 1),
            f"| resident MiB | {' | '.join(held)} |",
            "",
            f"From epoch {EARLY} to {found['epochs']}: {found['growth']:+.1%} (at most {GROWTH:+.0%} is allowed).",
        ]
    )


def main() -> None:
    """Measure and write; exit code 1 where memory grows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--results", type=Path, help="write the table between this page's markers")
    given = parser.parse_args()
    found = measure(given.epochs)
    if given.output is not None:
        given.output.write_text(json.dumps(found, indent=2) + "\n")
    if given.results is not None:
        put(given.results, "memory", table(found))
    print(table(found))
    sys.exit(found["growth"] > GROWTH)


if __name__ == "__main__":
    main()
