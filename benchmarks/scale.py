"""From scored candidates to pairs in files, and from rollouts to groups: time and peak memory, and how both grow.

    python benchmarks/scale.py [--sizes 10000 100000 1000000] [--source run] [--output scale.json] [--folder DIR]

`run`: a run folder whose rollouts have 10 turns with 3 scored candidates each; `records`: a file of judgments, two completions
each, with task keys; `near-duplicates`: the same without task keys, split by what the contexts say; `groups`: rollouts of four
turns with token ids, built into groups a step of 256 at a time, as a run does (a step's rollouts are the window; sizes are in
rollouts). The data are written by this process, as a stream; each measurement is a process of its own, from reading to the end.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import yaml
from speed.results import put

TURNS, CANDIDATES = 10, 3
SAID = """claim policy clause damage water storm roof kitchen garage estimate invoice photo witness report deductible coverage
limit repair replace inspect review explain cite recommend decline partial full owner
tenant vehicle door window pipe floor wall"""
WORDS = SAID.split()
SOURCES = ("run", "records", "near-duplicates", "groups")
STEP, GENERATIONS = 256, 8
"""Rollouts of a step of `groups`, and of an example."""


def words(generator: random.Random, count: int) -> str:
    """A text of this many words."""
    return " ".join(generator.choices(WORDS, k=count))


def rollout(number: int, generator: random.Random) -> dict[str, object]:
    """A rollout as `events.jsonl` holds it."""
    events: list[dict[str, object]] = []
    messages: list[dict[str, str]] = [{"role": "system", "content": "You review claims."}]
    for turn in range(TURNS):
        messages = [*messages[:1], *messages[1:][-4:], {"role": "user", "content": f"{number}.{turn} {words(generator, 30)}"}]
        texts = [words(generator, 20) for _ in range(CANDIDATES)]
        for index, text in enumerate(texts):
            events.append(
                {
                    "kind": "candidate_scored",
                    "rollout_id": f"r{number}",
                    "seq": len(events),
                    "path": ["<workflow>", "choose_move"],
                }
                | {"start": 0.0, "end": 0.0, "step_name": "move_candidate", "turn_id": turn, "candidate_index": index}
                | {"input": messages, "output": text, "score": round(generator.random(), 6)}
            )
        messages = [*messages, {"role": "assistant", "content": texts[0]}]
    return {"rollout_id": f"step00000-{number:07d}-000", "example_id": number, "generation": 0, "seed": 0, "events": events}


def write_run(folder: Path, candidates: int) -> Path:
    """A run folder of so many candidates."""
    generator = random.Random(7)
    rollouts = max(1, candidates // (TURNS * CANDIDATES))
    run = folder / "run"
    run.mkdir()
    with (folder / "examples.jsonl").open("w") as examples, (run / "events.jsonl").open("w") as events:
        for number in range(rollouts):
            task = f"t{number // 2}"
            examples.write(json.dumps({"id": number, "question": f"{number}", "task_key": task}) + "\n")
            events.write(json.dumps({"step": 0, "rollout": rollout(number, generator)}, separators=(",", ":")) + "\n")
    (run / "run.json").write_text(json.dumps({"run_id": "run", "config_name": "scale"}))
    shipped = yaml.safe_load((Path(__file__).parents[1] / "configs" / "dpo_tic_tac_toe.yml").read_text())
    shipped["eval"]["general"]["dataset"]["file_path"] = str(folder / "examples.jsonl")
    for held_out in ("validation", "test"):
        del shipped["finetuning"][held_out]
    (run / "config.yml").write_text(yaml.safe_dump(shipped))
    return run


def sampled(number: int, generator: random.Random) -> dict[str, object]:
    """A rollout of four model calls whose prompts extend one another."""
    events: list[dict[str, object]] = []
    ids = [generator.randrange(1000) for _ in range(64)]
    common = {"kind": "model_call", "path": ["<workflow>"], "start": 0.0, "end": 0.0, "llm": "policy", "finish_reason": "stop"}
    for seq in range(4):
        reply = [generator.randrange(1000) for _ in range(32)]
        says = {"message": {"role": "assistant", "content": words(generator, 20)}, "sampling": {"max_tokens": 32}}
        tokens = {"prompt_ids": ids, "completion_ids": reply, "logprobs": [-0.5] * 32}
        asked = [{"role": "user", "content": words(generator, 30)}]
        events.append({**common, "rollout_id": f"r{number}", "seq": seq, "messages": asked, **says, **tokens})
        ids = [*ids, *reply, *(generator.randrange(1000) for _ in range(16))]
    kept = {"rollout_id": f"r{number:07d}", "example_id": number // GENERATIONS, "generation": number % GENERATIONS, "seed": 0}
    return {**kept, "events": events, "rewards": {"reward": generator.random()}}


def write_groups(folder: Path, rollouts: int) -> Path:
    """A run folder's log of so many rollouts."""
    generator = random.Random(7)
    with (folder / "events.jsonl").open("w") as events:
        for number in range(rollouts):
            line = {"step": number // STEP, "rollout": sampled(number, generator)}
            events.write(json.dumps(line, separators=(",", ":")) + "\n")
    return folder


def build(folder: Path) -> None:
    """Groups of every step, and what they took."""
    from itertools import groupby

    from nat_finetune.data.groups import build_groups
    from nat_finetune.data.trajectories import Credit
    from nat_finetune.runstore import RunStore
    from nat_finetune.types import Group, RewardTerm, Target

    target, made = Target(("<workflow>",), "policy", (RewardTerm("reward"),)), 0
    for _, lines in groupby(RunStore(folder).rollouts(), key=lambda line: line[0]):
        rollouts = [rollout for _, rollout in lines if rollout is not None]
        made += sum(isinstance(item, Group) for item in build_groups(rollouts, target, Credit()))
    print(json.dumps({"rows": made, "dropped": {}}))
    print(json.dumps(used()))


def records(count: int, *, task_keys: bool) -> Iterator[dict[str, object]]:
    """Judgments, two of each context's kind."""
    generator = random.Random(7)
    for number in range(count):
        task = {"task_key": f"t{number // 2}"} if task_keys else {}
        said = [[{"role": "assistant", "content": words(generator, 20)}] for _ in range(2)]
        prompt = [{"role": "user", "content": f"{number} {words(generator, 60)}"}]
        yield {"prompt": prompt, "chosen": said[0], "rejected": said[1], **task}


def write_records(folder: Path, candidates: int, *, task_keys: bool) -> Path:
    """A config with a file of judgments of so many completions."""
    with (folder / "labels.jsonl").open("w") as file:
        for record in records(candidates // 2, task_keys=task_keys):
            file.write(json.dumps(record) + "\n")
    made = {
        "config_version": 1,
        "llms": {"policy": {"_type": "local", "model": "builtin:tic-tac-toe", "max_tokens": 2}},
        "trajectory_builders": {
            "labels": {
                "_type": "preference_dataset_builder",
                "dataset": {"_type": "jsonl", "file_path": str(folder / "labels.jsonl")},
            }
        },
        "trainer_adapters": {"here": {"_type": "local_trainer_adapter", "algorithm": {"name": "dpo"}, "learning_rate": 1e-5}},
        "trainers": {"once": {"_type": "preference_trainer"}},
        "finetuning": {"enabled": True, "trajectory_builder": "labels", "trainer_adapter": "here", "trainer": "once"},
    }
    path = folder / "labels.yml"
    path.write_text(yaml.safe_dump(made))
    return path


def measured(source: Path, output: Path, extra: list[str]) -> dict[str, object]:
    """One export in a process of its own."""
    command = [sys.executable, __file__, "--worker", "--", str(source), "--format", "trl", "--output", str(output), "--json"]
    if (source / "events.jsonl").is_file() and not (source / "run.json").is_file():
        command = [sys.executable, __file__, "--worker", "--source", "groups", "--", str(source)]
    began = time.monotonic()
    done = subprocess.run([*command, *extra], capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    if done.returncode:
        raise SystemExit(done.stderr)
    made, cost = (json.loads(line) for line in done.stdout.splitlines())
    return {"rows": made["rows"], "left_out": made["dropped"], "wall_seconds": round(seconds, 1), **cost}


def export(arguments: list[str]) -> None:
    """The command, and what it took."""
    from nat_finetune.cli.main import main as command

    code = command(["export-data", *arguments])
    if code:
        raise SystemExit(code)
    print(json.dumps(used()))


def used() -> dict[str, float]:
    """By this process so far."""
    found = resource.getrusage(resource.RUSAGE_SELF)
    return {"cpu_seconds": round(found.ru_utime + found.ru_stime, 1), "peak_mib": round(found.ru_maxrss / 1024)}


def table(source: str, results: list[dict[str, object]]) -> str:
    """Markdown; time for each shows whether it grows in line with the number."""
    what = "rollouts" if source == "groups" else "candidates"
    lines = [f"| {what} (`{source}`) | MiB read | CPU s | µs for each | peak MiB | made |", "|" + " --- |" * 6]
    for result in results:
        each = float(result["cpu_seconds"]) / float(result["candidates"]) * 1e6
        rows = result["rows"]  # of a file each, where there are several
        made = sum(rows.values()) if isinstance(rows, dict) else rows
        cells = [f"{result['candidates']:,}", f"{result['input_mib']:,}", result["cpu_seconds"], f"{each:,.0f}"]
        lines.append(f"| {' | '.join(map(str, [*cells, result['peak_mib'], f'{made:,}']))} |")
    return "\n".join(lines)


def main() -> None:
    """Measure all sizes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--source", choices=SOURCES, default="run")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--results", type=Path, help="write the table between this page's markers")
    parser.add_argument("--folder", type=Path, help="where the data are written; default: a temporary folder")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        if options.source == "groups":
            build(Path(options.arguments[0]))
        else:
            export(options.arguments)
        return
    results = []
    for size in options.sizes:
        with tempfile.TemporaryDirectory(dir=options.folder) as name:
            folder, began = Path(name), time.monotonic()
            if options.source == "run":
                source, extra = write_run(folder, size), []
            elif options.source == "groups":
                source, extra = write_groups(folder, size), []
            else:
                by = "task_key" if options.source == "records" else "near_duplicates"
                source, extra = write_records(folder, size, task_keys=by == "task_key"), ["--split-by", by]
            read = sum(path.stat().st_size for path in folder.rglob("*.jsonl"))
            wrote = round(time.monotonic() - began, 1)
            found = {"candidates": size, "input_mib": round(read / 2**20), "generated_in_seconds": wrote}
            results.append(found | measured(source, folder / "out", extra))
            print(json.dumps(results[-1]), flush=True)
    print(table(options.source, results))
    if options.results is not None:
        put(options.results, f"scale-{options.source}", table(options.source, results))
    if options.output is not None:
        report = {"source": options.source, "cpus": os.cpu_count(), "results": results}
        options.output.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
