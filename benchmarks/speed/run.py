"""The product and TRL 1.16 on the same work, in alternation: `make bench`, or

    BENCH_TRL_PYTHON=… BENCH_SMOLLM2=… python benchmarks/speed/run.py [--only dpo,grpo] [--models tiny] [--time-limit 1800]

Both sides are started, load their model and then work in turns, a unit each (A B A B …). Every finished pair is appended to the
log, and a later call goes on from there. See README.md beside this file for what is measured and how.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from protocol import Job
from sides import Machine, OutOfTime, SideProcess, run_check
from workload import model_folder, work_for

ROOT = Path(__file__).parents[2]
CASES = [
    ("smollm2", "dpo", "lora"), ("smollm2", "grpo", "lora"), ("smollm2", "agent", "lora"), ("smollm2", "load", "lora"),
    ("tiny", "dpo", "lora"), ("tiny", "grpo", "lora"), ("smollm2", "dpo", "full"),
    ("tiny", "agent", "lora"), ("tiny", "load", "lora"), ("tiny", "dpo", "full"), ("tiny", "grpo", "full"),
    ("smollm2", "grpo", "full"),
]  # fmt: skip
"""What matters most comes first: a time limit cuts the end off."""
STEPS = {"dpo": 8, "grpo": 1, "agent": 1, "load": 1}
"""Optimiser steps of a unit: DPO's is one update over all 64 pairs."""
QUIET_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    works: list[str]
    models: list[str]
    modes: list[str]
    pairs: int
    steps: dict[str, int]
    threads: int
    until: float
    log: Path
    cache: Path
    peer: str | None
    check: bool


def cases(options: Options) -> Iterator[tuple[str, Job]]:
    """Name and job of each case that is asked for, the most important first."""
    for model, work, mode in CASES:
        if model in options.models and work in options.works and (mode in options.modes or work == "load"):
            folder = model_folder(model, options.cache)
            steps = options.steps[work]
            file = work_for(folder, options.cache)
            units = options.pairs + 1
            yield f"{model} {work} {mode}", Job(work, str(folder), mode, steps, units, options.threads, str(file))


class Log:
    """One JSON object a line; `case`, `threads` and `steps` say what a later call need not do again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def lines(self) -> list[dict[str, Any]]:
        """All of them; one that was cut off is left out."""
        if not self.path.is_file():
            return []
        return [json.loads(line) for line in self.path.read_text().splitlines() if line.endswith("}")]

    def add(self, kind: str, case: str, job: Job, **found: Any) -> None:
        """Append a line."""
        line = {"kind": kind, "case": case, "threads": job.threads, "steps": job.steps, "at": round(time.time()), **found}
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def count(self, kind: str, case: str, job: Job) -> int:
        """Lines of a kind that are there already."""
        key = (kind, case, job.threads, job.steps)
        return sum((line["kind"], line["case"], line["threads"], line["steps"]) == key for line in self.lines())


def run_case(name: str, job: Job, options: Options, log: Log) -> None:
    """The pairs of a case that are not there yet."""
    done = log.count("pair", name, job)
    if done >= options.pairs:
        say(f"{name}: {done} pairs are there")
        return
    if time.monotonic() > options.until:
        raise OutOfTime(f"{name} was not begun")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        if options.check and options.peer and job.work in ("dpo", "grpo") and not log.count("check", name, job):
            found = run_check(sys.executable, options.peer, job, folder)
            log.add("check", name, job, **found)
            say(f"{name}: losses on an equal batch differ by {found['difference']:.1e}")
        log.add("floor", name, job, **floor_of(job))
        compare(name, job, options, log, folder, done)


def compare(name: str, job: Job, options: Options, log: Log, folder: Path, done: int) -> None:
    """Start the sides and let them work in turns."""
    started = {"product": (sys.executable, "product.py")} | ({"peer": (options.peer, "peer.py")} if options.peer else {})
    sides: dict[str, SideProcess] = {}
    try:
        about = {}
        for side, (python, script) in started.items():
            sides[side] = SideProcess(python, script, job, folder / f"{side}.json", folder / f"{side}.log")
            about[side] = sides[side].ready(options.until)
        log.add("ready", name, job, **about)
        if "tiny" in name:  # the first unit of a process makes its threads and memory: seconds, where a unit takes one
            for process in sides.values():
                process.unit(options.until)
        for pair in range(done, options.pairs):
            began = time.monotonic()
            units = {side: process.unit(options.until) for side, process in sides.items()}
            log.add("pair", name, job, pair=pair, **units)
            say(f"{name}, pair {pair + 1} of {options.pairs}: " + "; ".join(map(told, units.items())))
            if time.monotonic() + 0.9 * (time.monotonic() - began) > options.until and pair + 1 < options.pairs:
                raise OutOfTime("another pair would not fit")
    finally:
        for process in sides.values():
            process.close()


def told(found: tuple[str, dict[str, Any]]) -> str:
    """A side's unit in a few words."""
    side, unit = found
    parts = [f"{part} {unit[part]['wall']:.2f} s" for part in ("step", "generation", "update") if part in unit]
    mark = " (disturbed)" if unit["machine"]["disturbed"] else ""
    return f"{side} {', '.join(parts)}, {unit['peak_gib']:.1f} GiB{mark}"


def floor_of(job: Job) -> dict[str, Any]:
    """What the work needs and what the machine reaches just now."""
    import floor

    rates, need = floor.measure(threads=job.threads), floor.need(job)
    return {"rates": asdict(rates), "need": asdict(need), "seconds": need.seconds(rates)}


def say(text: str) -> None:
    """To the terminal."""
    print(text, flush=True)


def main() -> None:
    """Measure, then write the tables."""
    options, arguments = parsed()
    log = Log(options.log)
    watch = Machine.now()
    time.sleep(QUIET_SECONDS)
    machine = watch.since(0.0)
    if machine["disturbed"]:
        say(f"this machine is not quiet: others use {machine['others']:.0%} of it, its host takes {machine['steal']:.0%}")
        if arguments.refuse_loaded:
            raise SystemExit("refused: measure when it is quiet, or leave --refuse-loaded out; units are flagged in any case")
    try:
        for name, job in cases(options):
            run_case(name, job, options, log)
    except OutOfTime as end:
        say(f"the time limit is reached ({end}); the same command goes on from here")
    import results

    if options.peer is None:
        say(results.table(results.summary(options.log)))
        return
    results.write(options.log, arguments.results, arguments.json)
    say(f"written: {arguments.results} and {arguments.json}")


def steps_of(text: str) -> dict[str, int]:
    """`2` for every work, or `dpo=2,grpo=1`; the load has none."""
    pairs = [part.partition("=") for part in text.split(",")]
    given = {work: int(count or name) for name, _, count in pairs for work in ([name] if count else list(STEPS))}
    unknown = set(given) - set(STEPS)
    if unknown or min(given.values()) < 1:
        raise argparse.ArgumentTypeError(f"expected works of {', '.join(STEPS)} with at least one step each, found {text!r}")
    return {**STEPS, **given, "load": 1}


def parsed() -> tuple[Options, argparse.Namespace]:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="dpo,grpo,agent,load", help="works, comma-separated")
    parser.add_argument("--models", default="smollm2,tiny")
    parser.add_argument("--modes", default="lora,full")
    parser.add_argument("--pairs", type=int, default=3, help="units of each side")
    parser.add_argument("--steps", type=steps_of, default=STEPS, help="optimiser steps of a unit: 2, or dpo=2,grpo=1 (8 and 1)")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--time-limit", type=float, default=float("inf"), help="seconds")
    parser.add_argument("--log", type=Path, default=ROOT / ".cache" / "bench" / "pairs.jsonl")
    parser.add_argument("--cache", type=Path, default=ROOT / ".cache" / "bench", help="the tiny model and the work")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "RESULTS.md")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "speed" / "results.json")
    parser.add_argument("--peer", default=os.environ.get("BENCH_TRL_PYTHON"), help="the Python that has TRL 1.16")
    parser.add_argument("--without-peer", action="store_true", help="the product alone")
    parser.add_argument("--no-check", action="store_true", help="do not compare losses on equal batches first")
    parser.add_argument("--refuse-loaded", action="store_true", help="end at once where the machine is not quiet")
    given = parser.parse_args()
    if not given.without_peer and not given.peer:
        parser.error("BENCH_TRL_PYTHON must name a Python with TRL 1.16 (`make bench-peer` makes one), or give --without-peer")
    split = {name: getattr(given, name).split(",") for name in ("only", "models", "modes")}
    return Options(
        works=split["only"], models=split["models"], modes=split["modes"], pairs=given.pairs, steps=given.steps,
        threads=given.threads, until=time.monotonic() + min(given.time_limit, 1e9), log=given.log, cache=given.cache,
        peer=None if given.without_peer else given.peer, check=not given.no_check,
    ), given  # fmt: skip


if __name__ == "__main__":
    main()
