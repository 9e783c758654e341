"""GDPO's claim at small scale: two rewards of different range, summed or made relative one by one (arXiv:2601.05242).

    python benchmarks/gdpo/experiment.py --seeds 16 --processes 2 [--minutes 40] [--policy FOLDER]

Every run is the product's own (`nat_finetune.finetune`). A finished run is a line of `runs.jsonl` and is not made again, so the
script can be stopped at any time. Learning rates are chosen first, for each arm on seeds and data of their own.
`python benchmarks/gdpo/results.py` makes `results.json` and `RESULTS.md` of what is there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RUNS = HERE / "runs.jsonl"
VALIDATION = ROOT / "workflows" / "tool_calling" / "data" / "validation.jsonl"
WHAT_RUNS = (
    "nat_finetune",
    "workflows/tool_calling",
    "configs",
    "benchmarks/gdpo/experiment.py",
    "benchmarks/gdpo/experiment.yml",
)
"""The last commit that changed any of it is kept with each run."""
TUNING_SEEDS = (101, 102)
RATES = (1e-3, 2e-3, 4e-3)
MOST_RATES = 5
WIDTH = 6.0
"""Of correctness, from -3 to 3."""

ARMS: dict[str, tuple[str, float]] = {
    "grpo": ("{name: grpo}", 1.0),
    "grpo_batch_norm": ("{name: grpo, batch_norm: true}", 1.0),
    "grpo_equal_range": ("{name: grpo}", 1.0 / WIDTH),
    "gdpo": ("{name: gdpo}", 1.0),
}
"""Arm to its algorithm and the weight of correctness (that of format is 1)."""
LENGTH_ARMS = tuple(f"{method}_{kind}" for method in ("gdpo", "grpo") for kind in ("free", "conditioned"))
LENGTH_LIMIT = 90
"""Characters: half of the right calls fit. The others are too long however they are written, so brevity costs content."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run."""

    experiment: str
    """`tune`, `main`, `length`, or `no_habit`: main with a policy whose tags and content are not at odds."""
    arm: str
    seed: int
    learning_rate: float

    def overrides(self, policy: str | None) -> list[str]:
        method = self.arm.removesuffix("_free").removesuffix("_conditioned")
        algorithm, weight = ARMS[method]
        rewards = ["{name: format}", f"{{name: correctness, weight: {weight!r}}}"]
        changes = [
            f"trainer_adapters.here.algorithm={algorithm}",
            f"trainer_adapters.here.learning_rate={self.learning_rate!r}",
            f"finetuning.seed={self.seed}",
        ]
        if self.experiment == "length":
            condition = ", condition: {requires: correctness, at_least: 3}" if self.arm.endswith("_conditioned") else ""
            rewards.append(f"{{name: short{condition}}}")
            changes.append(f"eval.evaluators.short.at_most={LENGTH_LIMIT}")
        if self.experiment == "tune":
            changes.append(f"finetuning.test.dataset.file_path={VALIDATION}")
        if self.experiment == "no_habit":
            changes.append(f"llms.policy.model={policy}")
        return [*changes, f"finetuning.reward_functions=[{', '.join(rewards)}]"]


def run_job(job: Job, commit: str, policy: str | None) -> dict[str, Any]:
    """One run, in a folder that is thrown away."""
    import torch

    from nat_finetune.config.load import load_config
    from nat_finetune.finetune import finetune, new_run
    from nat_finetune.registry import Registry
    from nat_finetune.report.progress import NullProgress

    torch.set_num_threads(1)
    registry = Registry.installed()
    began, cpu = time.monotonic(), time.process_time()
    loaded = load_config(HERE / "experiment.yml", job.overrides(policy), registry=registry)
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(finetune(loaded, registry, new_run(loaded, Path(folder)), NullProgress()))
    steps = report["steps"]
    return {
        **asdict(job),
        "test": {name: {side: row[side]["mean"] for side in ("before", "after")} for name, row in report["metrics"].items()},
        "curves": {
            **{name: [round(step["reward"][name]["mean"], 4) for step in steps] for name in steps[0]["reward"]},
            "entropy": [round(step["update"]["entropy"], 4) if step["update"] else None for step in steps],
            "kept": [step["kept"] for step in steps],
        },
        "advantage_share": [step.get("advantage_share") for step in steps[:: len(steps) // 6]],
        "seconds": round(time.monotonic() - began, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "commit": commit,
    }


def finished() -> list[dict[str, Any]]:
    """All runs so far."""
    return [json.loads(line) for line in RUNS.read_text(encoding="utf-8").splitlines()] if RUNS.exists() else []


def _key(row: dict[str, Any]) -> Job:
    return Job(**{name: row[name] for name in Job.__dataclass_fields__})


class Lab:
    """Runs jobs in a few processes and keeps what they give."""

    def __init__(self, pool: ProcessPoolExecutor, deadline: float, policy: str | None) -> None:
        self._pool = pool
        self._deadline = deadline
        self._policy = policy
        self._commit = subprocess.run(
            ["git", "log", "-1", "--format=%h", "--", *WHAT_RUNS], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()

    def run(self, jobs: Iterable[Job]) -> None:
        """All that are not finished, in their order. Ends the script at the deadline; what is finished is kept."""
        known = {_key(row) for row in finished()}
        waiting = [job for job in jobs if job not in known]
        running: set[Any] = set()
        while waiting or running:
            while waiting and len(running) < self._pool._max_workers and time.monotonic() < self._deadline:
                running.add(self._pool.submit(run_job, waiting.pop(0), self._commit, self._policy))
            if not running:
                raise SystemExit(f"out of time: {len(waiting)} runs of this part are left; start again to go on")
            done = next(as_completed(running))
            running.discard(done)
            row = done.result()
            with RUNS.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            after = {name: round(value["after"], 3) for name, value in row["test"].items()}
            print(
                *(row[name] for name in ("experiment", "arm", "seed", "learning_rate", "seconds", "cpu_seconds")),
                after,
                flush=True,
            )


def quality(row: dict[str, Any]) -> float:
    """What learning rates are chosen by: the mean of both rewards, each from 0 to 1."""
    return (row["test"]["format"]["after"] + (row["test"]["correctness"]["after"] + WIDTH / 2) / WIDTH) / 2


def tried(arm: str, rows: Sequence[dict[str, Any]]) -> dict[float, float]:
    """Learning rate to mean quality over the tuning seeds."""
    mine = [row for row in rows if row["experiment"] == "tune" and row["arm"] == arm]
    return {
        rate: fmean(quality(row) for row in mine if row["learning_rate"] == rate)
        for rate in sorted({r["learning_rate"] for r in mine})
    }


def tune(lab: Lab) -> dict[str, float]:
    """The best learning rate of each arm; where it is at an end of what was tried, one further is tried."""
    rates = {arm: list(RATES) for arm in ARMS}
    while True:
        lab.run(Job("tune", arm, seed, rate) for arm in ARMS for rate in rates[arm] for seed in TUNING_SEEDS)
        grown = False
        for arm, given in rates.items():
            scores = tried(arm, finished())
            best = max(scores, key=lambda rate: scores[rate])
            if best in (min(scores), max(scores)) and len(scores) < MOST_RATES:
                given.append(best / 2 if best == min(scores) else best * 2)
                grown = True
        if not grown:
            return {arm: max(scores, key=lambda rate: scores[rate]) for arm in ARMS if (scores := tried(arm, finished()))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=1e6, help="start no run after this")
    parser.add_argument("--policy", help="folder of a policy built with HABIT 0 (build_policy.py), for the last part")
    arguments = parser.parse_args()
    deadline = time.monotonic() + 60 * arguments.minutes
    with ProcessPoolExecutor(arguments.processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        lab = Lab(pool, deadline, arguments.policy)
        rate = tune(lab)
        seeds = range(1, arguments.seeds + 1)
        lab.run(Job("main", arm, seed, rate[arm]) for seed in seeds for arm in ARMS)
        for method in ("gdpo", "grpo"):
            arms = [arm for arm in LENGTH_ARMS if arm.startswith(method)]
            lab.run(Job("length", arm, seed, rate[method]) for seed in seeds for arm in arms)
        if arguments.policy:
            lab.run(Job("no_habit", arm, seed, rate[arm]) for seed in seeds for arm in ("grpo", "gdpo"))


if __name__ == "__main__":
    main()
