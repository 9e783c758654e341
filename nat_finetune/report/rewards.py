"""What a step's rollouts say of each reward by itself: level, spread, and whether it goes with the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from statistics import fmean
from typing import Any

from nat_finetune.data.keys import example_key
from nat_finetune.data.rewards import paid_rewards
from nat_finetune.types import Rollout, Target

Columns = Mapping[str, Sequence[float | None]]


def reward_figures(rollouts: Sequence[Rollout], target: Target) -> dict[str, dict[str, Any]]:
    """By evaluator: `mean` over known scores, `spread`, `unknown` (a count), and of several also `correlation`.

    `spread` is the mean, over examples with two or more known scores, of their largest difference: 0 means that there is
    nothing to compare. `correlation` holds, for every other evaluator, the correlation inside groups (of what is left when each
    example's mean is taken away): None where either does not vary. A reward with a condition has `paid_mean` too: after it.
    """
    names = sorted({name for rollout in rollouts for name in rollout.rewards})
    columns = {name: [rollout.rewards.get(name) for rollout in rollouts] for name in names}
    groups: dict[str, list[int]] = {}
    for index, rollout in enumerate(rollouts):
        groups.setdefault(example_key(rollout.example_id), []).append(index)
    figures = {name: _figures(columns[name], list(groups.values())) for name in names}
    if len(names) > 1:
        for name in names:
            others = [other for other in names if other != name]
            figures[name]["correlation"] = {
                other: correlation(columns[name], columns[other], list(groups.values())) for other in others
            }
    paid = [paid_rewards(rollout.rewards, target.rewards) for rollout in rollouts]
    for term in target.rewards:
        if term.condition is not None and term.name in figures:
            known = [value for row in paid if (value := row[term.name]) is not None]
            figures[term.name]["paid_mean"] = fmean(known) if known else None
    return figures


def correlation(first: Sequence[float | None], second: Sequence[float | None], groups: Sequence[Sequence[int]]) -> float | None:
    """Pearson's correlation of two scores inside groups; None where one of them does not vary there.

    >>> correlation([0.0, 1.0, 5.0, 6.0], [1.0, 0.0, 8.0, 7.0], [[0, 1], [2, 3]])
    -1.0
    """
    pairs: list[tuple[float, float]] = []
    for members in groups:
        known = [(a, b) for i in members if (a := first[i]) is not None and (b := second[i]) is not None]
        if len(known) > 1:
            mean_a, mean_b = fmean(a for a, _ in known), fmean(b for _, b in known)
            pairs += [(a - mean_a, b - mean_b) for a, b in known]
    size_a, size_b = sqrt(sum(a * a for a, _ in pairs)), sqrt(sum(b * b for _, b in pairs))
    if size_a == 0 or size_b == 0:
        return None
    return max(-1.0, min(1.0, sum(a * b for a, b in pairs) / size_a / size_b))


def reward_rows(steps: Sequence[Mapping[str, Any]], trained: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each score of the training rollouts: level at both ends, means over the steps of everything else."""
    names = dict.fromkeys([*trained, *(name for step in steps for name in step["reward"])])
    rows = []
    for name in names:
        lines = [step["reward"][name] for step in steps if name in step["reward"]]
        levels = [line["mean"] for line in lines if line["mean"] is not None]
        others = dict.fromkeys(other for line in lines for other in line.get("correlation", {}))
        rows.append(
            {
                "name": name,
                "trained": name in trained,
                "first": levels[0] if levels else None,
                "last": levels[-1] if levels else None,
                "spread": _mean(line["spread"] for line in lines),
                "share": _mean(step.get("advantage_share", {}).get(name) for step in steps),
                "correlation": {other: _mean(line.get("correlation", {}).get(other) for line in lines) for other in others},
            }
        )
    return rows


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _figures(scores: Sequence[float | None], groups: Sequence[Sequence[int]]) -> dict[str, Any]:
    by_group = [[value for index in members if (value := scores[index]) is not None] for members in groups]
    known = [value for values in by_group for value in values]
    spreads = [max(values) - min(values) for values in by_group if len(values) > 1]
    return {
        "mean": fmean(known) if known else None,
        "spread": fmean(spreads) if spreads else None,
        "unknown": len(scores) - len(known),
    }
