"""The negative control of DPO on labels: the same run on records whose sides were swapped by coin toss must gain nothing.

An SFT term also learns from what both sides have in common: turn it off (`sft_loss_weight=0`) to see the labels' part alone.

    python benchmarks/shuffled_labels.py configs/dpo_claims_review.yml --seeds 3 [-o key=value ...]

Takes a config whose builder reads a JSONL file of records with `chosen` and `rejected` (TRL). Prints one JSON line a seed
and a summary: the gain on the test set's primary metric, with the true labels and with tossed ones.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from pathlib import Path
from random import Random
from typing import Any

from nat_finetune.config.load import load_config
from nat_finetune.data.seeds import derive_seed
from nat_finetune.finetune import finetune, new_run
from nat_finetune.registry import Registry
from nat_finetune.report.progress import NullProgress


def tossed(source: Path, target: Path, seed: int) -> None:
    """The records of `source`, each with its sides swapped or not as a coin says."""
    generator = Random(derive_seed(seed, "toss"))
    rows = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        if generator.random() < 0.5:
            row["chosen"], row["rejected"] = row["rejected"], row["chosen"]
    target.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def gain(config: Path, overrides: list[str], seed: int, *, shuffled: bool) -> dict[str, Any]:
    components = Registry.installed()
    overrides = [*overrides, f"finetuning.seed={seed}"]
    loaded = load_config(config, overrides, registry=components)
    with tempfile.TemporaryDirectory() as folder:
        if shuffled:
            name = loaded.config.finetuning.trajectory_builder
            source = Path(loaded.config.trajectory_builders[name].dataset.file_path)
            labels = Path(folder) / "labels.jsonl"
            tossed(source, labels, seed)
            overrides.append(f"trajectory_builders.{name}.dataset.file_path={labels}")
            loaded = load_config(config, overrides, registry=components)
        report = asyncio.run(finetune(loaded, components, new_run(loaded, Path(folder) / "runs"), NullProgress()))
    metric = report["metrics"][report["primary_metric"]]
    return {"shuffled": shuffled, "seed": seed, **metric["gain"], "seconds": report["seconds"]["total"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--true-seeds", type=int, default=1, help="runs with the true labels, to compare with")
    parser.add_argument("-o", dest="overrides", action="append", default=[])
    arguments = parser.parse_args()
    rows = []
    for shuffled, count in ((False, arguments.true_seeds), (True, arguments.seeds)):
        for seed in range(count):
            row = gain(arguments.config, arguments.overrides, seed, shuffled=shuffled)
            rows.append(row)
            print(json.dumps(row), flush=True)
    true = [row["mean"] for row in rows if not row["shuffled"]]
    highest = max((row["high"] for row in rows if row["shuffled"]), default=None)
    print(json.dumps({"true_gain": sum(true) / len(true) if true else None, "highest_upper_bound_shuffled": highest}))


if __name__ == "__main__":
    main()
