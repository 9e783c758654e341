"""Makes `results.json`, `curves.svg` and `RESULTS.md` of `runs.jsonl`: `python benchmarks/gdpo/results.py`.

Seeds are what varies: every interval is over runs, and differences are paired by seed (same examples in the same order, same
seeds of the rollouts). What the figures mean, where a person had to find out, is in `notes.md` and is appended as it stands.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from curves import draw
from experiment import ARMS, HERE, LENGTH_ARMS, LENGTH_LIMIT, TUNING_SEEDS, finished, quality, tried

from nat_finetune.data.intervals import estimate, paired_gain

PASSES, SMOOTHED = 0.8, 3
METRICS = ("format", "correctness", "both", "exact_call", "short", "passes_at")
GROUPS: dict[str, tuple[str, ...]] = {"main": tuple(ARMS), "length": LENGTH_ARMS, "no_habit": ("grpo", "gdpo")}
PAIRS: dict[str, tuple[tuple[str, str], ...]] = {
    "main": tuple((arm, "gdpo") for arm in ARMS if arm != "gdpo"),
    "length": (
        ("gdpo_free", "gdpo_conditioned"),
        ("grpo_free", "grpo_conditioned"),
        ("grpo_conditioned", "gdpo_conditioned"),
        ("grpo_free", "gdpo_free"),
    ),
    "no_habit": (("grpo", "gdpo"),),
}
Row = dict[str, Any]
SHOWN = {"both": "both, 0 to 1", "exact_call": "one best answer", "passes_at": f"updates until format ≥ {PASSES}"}


def passes_at(curve: Sequence[float]) -> int:
    """Updates made when the mean of format over three steps first reaches 0.8; one more than there are where it never does."""
    means = (fmean(curve[end - SMOOTHED : end]) for end in range(SMOOTHED, len(curve) + 1))
    return next((index + SMOOTHED - 1 for index, mean in enumerate(means) if mean >= PASSES - 1e-9), len(curve) + 1)


def values(rows: Sequence[Row], arm: str, metric: str) -> dict[str, float | None]:
    """Seed to value."""
    mine = [row for row in rows if row["arm"] == arm]
    if metric == "passes_at":
        return {str(row["seed"]): float(passes_at(row["curves"]["format"])) for row in mine}
    return {str(row["seed"]): quality(row) if metric == "both" else row["test"][metric]["after"] for row in mine}


def summary(rows: Sequence[Row], experiment: str) -> Row:
    """Every arm by itself, and the differences."""
    rows = [row for row in rows if row["experiment"] == experiment]
    arms = [arm for arm in GROUPS[experiment] if any(row["arm"] == arm for row in rows)]
    found: Row = {"arms": {}, "differences": []}
    for arm in arms:
        mine = [row for row in rows if row["arm"] == arm]
        shares = [row["advantage_share"][0] for row in mine if row["advantage_share"][0]]
        found["arms"][arm] = {
            "runs": len(mine),
            "learning_rate": mine[0]["learning_rate"],
            "never_passes": sum(passes_at(row["curves"]["format"]) > len(row["curves"]["format"]) for row in mine),
            "advantage_share_of_format_at_first": fmean(share["format"] for share in shares) if shares else None,
            **{metric: _interval(values(rows, arm, metric)) for metric in METRICS},
        }
    for other, arm in PAIRS[experiment]:
        if other in arms and arm in arms:
            found["differences"].append({"arm": arm, "minus": other, **_differences(rows, other, arm)})
    return found


def _interval(by_seed: Mapping[str, float | None]) -> Row:
    return asdict(estimate(by_seed, {seed: seed for seed in by_seed}, seed=0))


def _differences(rows: Sequence[Row], other: str, arm: str) -> Row:
    found: Row = {}
    for metric in METRICS:
        one, two = values(rows, other, metric), values(rows, arm, metric)
        both = {seed: seed for seed in one if seed in two}
        gain = paired_gain({s: one[s] for s in both}, {s: two[s] for s in both}, both, seed=0)
        higher = sum((two[seed] or 0) > (one[seed] or 0) for seed in both)
        found[metric] = {**asdict(gain), "higher_in": higher}
    return found


def curves(rows: Sequence[Row], experiment: str, metric: str) -> dict[str, list[float]]:
    """Arm to the mean curve of its runs."""
    mine = [row for row in rows if row["experiment"] == experiment]
    return {
        arm: [round(fmean(step), 4) for step in zip(*(r["curves"][metric] for r in mine if r["arm"] == arm), strict=True)]
        for arm in GROUPS[experiment]
        if any(row["arm"] == arm for row in mine)
    }


def collect(rows: Sequence[Row]) -> Row:
    """Everything that RESULTS.md says, as data."""
    parts = [name for name in GROUPS if any(row["experiment"] == name for row in rows)]
    return {
        "commits": sorted({row["commit"] for row in rows}),
        "runs": len(rows),
        "cpu_seconds_per_run": round(fmean(row["cpu_seconds"] for row in rows), 1),
        "before": {name: round(fmean(row["test"][name]["before"] for row in rows if row["experiment"] != "tune"), 4)
                   for name in ("format", "correctness", "exact_call")},
        "tuning": {arm: {f"{rate:g}": round(score, 4) for rate, score in tried(arm, rows).items()} for arm in ARMS},
        **{name: summary(rows, name) for name in parts},
        "curves": {name: {metric: curves(rows, name, metric) for metric in ("format", "correctness")} for name in parts},
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------------------------ words


def number(value: float | None, digits: int = 3, *, signed: bool = False) -> str:
    return "unknown" if value is None else f"{value:{'+' if signed else ''}.{digits}f}"


def cell(found: Row, *, signed: bool = False, digits: int = 3) -> str:
    low, high = (number(found[side], digits, signed=signed) for side in ("low", "high"))
    return f"{number(found['mean'], digits, signed=signed)} [{low}, {high}]"


def table(part: Row, metrics: Sequence[str]) -> list[str]:
    """Every arm with its intervals."""
    lines = [
        "| arm | runs | learning rate | " + " | ".join(SHOWN.get(metric, metric) for metric in metrics) + " |",
        "| --- | --- | --- |" + " --- |" * len(metrics),
    ]
    for arm, found in part["arms"].items():
        cells = [cell(found[metric], digits=1 if metric == "passes_at" else 3) for metric in metrics]
        if "passes_at" in metrics and found["never_passes"]:
            cells[metrics.index("passes_at")] += f", never in {found['never_passes']}"
        lines.append(f"| `{arm}` | {found['runs']} | {found['learning_rate']:g} | " + " | ".join(cells) + " |")
    return lines


def comparison(part: Row, metrics: Sequence[str]) -> list[str]:
    """Differences, paired by seed."""
    lines = [
        "| difference | pairs | " + " | ".join(SHOWN.get(metric, metric) for metric in metrics) + " |",
        "| --- | --- |" + " --- |" * len(metrics),
    ]
    for row in part["differences"]:
        cells = [cell(row[metric], signed=True, digits=1 if metric == "passes_at" else 3) for metric in metrics]
        lines.append(f"| `{row['arm']}` minus `{row['minus']}` | {row['format']['n']} | " + " | ".join(cells) + " |")
    return lines


def verdict(row: Row) -> str:
    """One comparison in words, by its intervals alone."""
    said = []
    for metric in ("format", "correctness", "both", "passes_at"):
        found, name = row[metric], SHOWN.get(metric, metric)
        if found["low"] is None or found["low"] <= 0 <= found["high"]:
            said.append(f"{name}: no difference that the interval can tell from none ({number(found['mean'], signed=True)})")
            continue
        better = (found["mean"] < 0) == (metric == "passes_at")
        said.append(f"{name}: {'better' if better else 'worse'} ({number(found['mean'], signed=True)})")
    return f"- `{row['arm']}` against `{row['minus']}`: " + "; ".join(said) + "."


def page(data: Row) -> str:
    """RESULTS.md."""
    two = ("format", "correctness", "both", "exact_call", "passes_at")
    lines = (HERE / "introduction.md").read_text(encoding="utf-8").rstrip().splitlines()
    before = ", ".join(f"{name} {value:.3f}" for name, value in data["before"].items())
    made = f"{data['runs']} runs, {data['cpu_seconds_per_run']} CPU seconds each, made at commit {', '.join(data['commits'])}."
    lines += ["", f"{made} Before training: {before}."]
    if "main" in data:
        lines += ["", "## Two rewards", "", *table(data["main"], two), "", *comparison(data["main"], two), ""]
        lines += ["By the intervals alone (95 %, not corrected for the number of comparisons):", ""]
        lines += [*map(verdict, data["main"]["differences"]), "", "![Training curves, means over seeds](curves.svg)"]
        lines += ["", "Share of the advantages that format made in the first update: " + ", ".join(
            f"`{arm}` {number(found['advantage_share_of_format_at_first'], 2)}" for arm, found in data["main"]["arms"].items())
            + "."]  # fmt: skip
    if "length" in data:
        three = ("format", "correctness", "both", "exact_call", "short")
        lines += ["", f"## A third reward: short (at most {LENGTH_LIMIT} characters), free or paid only for the right call", ""]
        lines += [*table(data["length"], three), "", *comparison(data["length"], three)]
    if "no_habit" in data:
        lines += ["", "## A policy whose tags and content are not at odds", ""]
        lines += [*table(data["no_habit"], two), "", *comparison(data["no_habit"], two)]
    lines += [
        "",
        "## Learning rates",
        "",
        f"Mean of both rewards (each from 0 to 1) on the validation requests, seeds {TUNING_SEEDS}:",
        "",
    ]
    lines += [
        f"- `{arm}`: " + ", ".join(f"{rate}: {score:.3f}" for rate, score in scores.items())
        for arm, scores in data["tuning"].items()
    ]
    notes = HERE / "notes.md"
    lines += ["", notes.read_text(encoding="utf-8").rstrip()] if notes.exists() else []
    return "\n".join(lines) + "\n"


def main() -> None:
    data = collect(finished())
    (HERE / "results.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    (HERE / "RESULTS.md").write_text(page(data), encoding="utf-8")
    if "main" in data:
        (HERE / "curves.svg").write_text(draw(data["curves"]["main"]), encoding="utf-8")


if __name__ == "__main__":
    main()
