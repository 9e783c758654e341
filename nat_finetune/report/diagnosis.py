"""Why nothing is learned, in words: what was seen, three rollouts beside their scores, and the suspects, most likely first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from statistics import fmean
from typing import Any

from nat_finetune.data.keys import example_key
from nat_finetune.data.signal import evaluator_failures, scored_attempts, unscored
from nat_finetune.data.trajectories import is_target
from nat_finetune.report.trend import slope
from nat_finetune.types import Cause, Dropped, DropReason, Rollout, Target

SHOWN = 3
"""Rollouts beside their scores."""
_LONGEST = 200
"""Characters of one text on the console; the run folder's events.jsonl holds all of it."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known when a run ends for want of a signal."""

    rollouts: Sequence[Rollout]
    """Of the last step."""
    target: Target
    generations: int
    best: Mapping[str, float] = field(default_factory=dict)
    """The best score of each reward, where its evaluator declares it."""
    calibration: str | None = None
    """What the evaluator said of known answers, in one sentence; None where it was not asked."""
    min_reward_diff: float | None = None
    """`curriculum_learning.min_reward_diff`; None without a curriculum."""


def no_signal_message(steps: int, dropped: Sequence[Dropped], evidence: Evidence) -> str:
    """Why nothing could be trained for so many steps in a row."""
    counts = Counter((drop.what, drop.reason.value) for drop in dropped)
    often = f"in {steps} steps in a row" if steps > 1 else "in this step"
    lines = [f"no trainable signal: there was nothing to learn from {often}; what the last one left out:"]
    lines += [f"  {count} x {what}: {reason}" for (what, reason), count in counts.most_common(5)]
    if not evidence.rollouts:
        return "\n".join([*lines, "check the records: two different completions of one context, one of them preferred"])
    failed = [*_policy_failed(evidence.rollouts), *_evaluators_failed(evidence.rollouts)]
    lines += [*_rewards_seen(evidence), *failed, *_shown(evidence), *suspects(evidence)]
    filtered = sum(1 for drop in dropped if drop.reason is DropReason.LOW_SPREAD)
    if evidence.min_reward_diff is not None:
        lines.append(
            f"min_reward_diff = {evidence.min_reward_diff:g} left out {filtered} groups whose rewards differ by less: it is a "
            "filter, which hides a flat reward and mends nothing; no value of it makes a signal where there is none"
        )
    return "\n".join(lines)


def unscored_message(evidence: Evidence, names: Sequence[str], limit: float) -> str | None:
    """What to say when more than `limit` (a share) of the rollouts have no score; None if not."""
    asked, missing = scored_attempts(evidence.rollouts), unscored(evidence.rollouts, names)
    if not missing or len(missing) <= limit * len(asked):
        return None
    gaps = {name: sum(1 for rollout in missing if rollout.rewards.get(name) is None) for name in names}
    named = ", ".join(f"{name} of {count}" for name, count in gaps.items() if count)
    lines = [
        f"no trainable signal: {len(missing)} of {len(asked)} rollouts have no score ({named}), more than "
        f"finetuning.max_unscored_rate = {limit:g} allows: the evaluator failed, or said that it does not know (None)",
        *_evaluators_failed(evidence.rollouts),
        *_shown(evidence, missing),
        *suspects(evidence),
    ]
    return "\n".join(lines)


def nothing_left_message(steps: int, evidence: Evidence) -> str:
    """What to say when every rollout earns the most that there is."""
    best = ", ".join(f"{name} {evidence.best[name]:g}" for name in evidence.target.reward_names)
    often = f"in {steps} steps in a row" if steps > 1 else "in this step"
    checked = evidence.calibration or "a known bad answer must score lower, which nobody has checked here"
    return "\n".join(
        [
            f"nothing left to learn: every rollout scored the evaluator's maximum ({best}) {often}",
            *_shown(evidence),
            f"either the policy has mastered these examples, or the evaluator pays everything: {checked}; harder examples, or "
            "a stricter reward, would give something to learn",
        ]
    )


def suspects(evidence: Evidence) -> list[str]:
    """What to check, in the order in which it is usually at fault."""
    best = ", ".join(f"{name} {value:g}" for name, value in evidence.best.items())
    maximum = f"its maximum ({best})" if best else "its maximum"
    checked = evidence.calibration or "nobody has checked that here: run it on some (docs/rewards.md)"
    temperatures = sorted(
        {call.sampling.temperature for r in evidence.rollouts for call in r.model_calls if is_target(call, evidence.target)}
    )
    at = " and ".join(f"{temperature:g}" for temperature in temperatures) or "unknown"
    return [
        "check in this order:",
        f"  1. the evaluator: gold answers must score {maximum}, wrong ones less; {checked}",
        "  2. the task's difficulty: a model that never succeeds, or always does, has nothing to compare; try easier (or "
        "harder) examples, or a reward that pays part of the way",
        f"  3. generations and temperature: now {evidence.generations} rollouts of each example at temperature {at}; more of "
        "either makes rollouts of one example differ",
    ]


def _rewards_seen(evidence: Evidence) -> Iterator[str]:
    """The levels on which rewards were flat."""
    for name in evidence.target.reward_names:
        known = [v for r in evidence.rollouts if (v := r.rewards.get(name)) is not None]
        if not known:
            yield f"{name} is unknown for every rollout of the last step"
        elif min(known) == max(known):
            yield f"{name} is {known[0]:g} for all {len(known)} scored rollouts of the last step"
        else:
            levels = Counter(known).most_common(4)
            shown = ", ".join(f"{value:g} ({count} x)" for value, count in levels)
            yield f"{name} differs between examples, not inside their groups: {shown}"


def _policy_failed(rollouts: Sequence[Rollout]) -> Iterator[str]:
    """Rollouts that the policy made fail (its words can't be used, no room in the context), and how most of them did."""
    failures = [r.failure for r in rollouts if r.failure is not None and r.failure.cause is Cause.POLICY]
    if failures:
        (kind, message), count = Counter((f.error_type, f.message) for f in failures).most_common(1)[0]
        often = f"{count} x {kind}: {short(message)}"
        yield f"{len(failures)} of {len(rollouts)} rollouts ended in a failure of the policy; {often}"


def _evaluators_failed(rollouts: Sequence[Rollout]) -> Iterator[str]:
    failed = [failure for rollout in rollouts for failure in evaluator_failures(rollout)]
    if failed:
        yield f"evaluators failed {len(failed)} times, such as: {failed[0].error_type}: {failed[0].message}"


def _shown(evidence: Evidence, preferred: Sequence[Rollout] = ()) -> Iterator[str]:
    """Three rollouts beside their scores: the best, the worst and one between, of different examples where scores tie."""
    rollouts = _telling(list(preferred) or scored_attempts(evidence.rollouts), evidence.target)
    if rollouts:
        yield f"{len(rollouts)} of its rollouts, with their scores:"
    for rollout in rollouts:
        scores = ", ".join(
            f"{name} {'unknown' if value is None else f'{value:g}'}"
            for name, value in rollout.rewards.items()
            if name in evidence.target.reward_names
        )
        yield f"  [{scores}] example {rollout.example_id!r}, {rollout.rollout_id}"
        calls = [call for call in rollout.model_calls if is_target(call, evidence.target)]
        if calls:
            asked = calls[-1].messages[-1].get("content") if calls[-1].messages else None
            yield f"    asked:    {short(asked)}"
            yield f"    answered: {short(calls[-1].message.get('content'))}"
        if rollout.failure is not None:
            yield f"    failed:   {short(rollout.failure.message)}"
        else:
            yield f"    output:   {short(rollout.output)}"


def _telling(rollouts: Sequence[Rollout], target: Target) -> list[Rollout]:
    """Highest, lowest and middle score; among equals the first of each example."""
    first_of_each: dict[str, Rollout] = {}
    for rollout in rollouts:
        first_of_each.setdefault(f"{_total(rollout, target)} {example_key(rollout.example_id)}", rollout)
    distinct = sorted(first_of_each.values(), key=lambda rollout: -_total(rollout, target))
    if len(distinct) < SHOWN:
        taken = {rollout.rollout_id for rollout in distinct}
        distinct += [rollout for rollout in rollouts if rollout.rollout_id not in taken][: SHOWN - len(distinct)]
    if len(distinct) <= SHOWN:
        return distinct
    return [distinct[0], distinct[len(distinct) // 2], distinct[-1]]


def _total(rollout: Rollout, target: Target) -> float:
    return fsum(rollout.rewards.get(name) or 0.0 for name in target.reward_names)


def short(value: Any) -> str:
    """A value on one line of bearable length."""
    text = value if isinstance(value, str) else repr(value)
    shown = " ".join(text.split()) if text.strip() else repr(text)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}… ({len(text):,} characters)"


# ---------------------------------------------------------------------------------------------------------------- plateau

_FEWEST_STEPS = 10
"""Below that a curve says little."""


def plateaus(steps: Sequence[Mapping[str, Any]], names: Sequence[str], best: Mapping[str, float]) -> list[str]:
    """A sentence about each trained reward that has stopped rising."""
    found = (plateau(steps, name, best.get(name)) for name in names)
    return [sentence for sentence in found if sentence is not None]


def plateau(steps: Sequence[Mapping[str, Any]], name: str, best: float | None) -> str | None:
    """Says so where a reward has stopped rising although groups still have spread; None where it has not.

    Looked at is the later half of the steps with an update, at least 10 of them: the slope of the mean reward by least squares
    is less than two of its standard errors above 0, and the mean is not at its best.
    """
    taken = [(s["step"], s["reward"][name]) for s in steps if s.get("update") and name in s["reward"]]
    points = [
        (step, row["mean"], row["spread"]) for step, row in taken if row["mean"] is not None and row["spread"] is not None
    ]
    late = points[len(points) // 2 :]
    if len(late) < _FEWEST_STEPS:
        return None
    level, spread = fmean(mean for _, mean, _ in late), fmean(spread for _, _, spread in late)
    rise, error = slope([(float(step), mean) for step, mean, _ in late])
    at_best = best is not None and abs(best - level) <= 0.01 * max(1.0, abs(best))
    if spread == 0 or at_best or rise > 2 * error:
        return None
    return (
        f"plateau: {name} has not risen since step {late[0][0]} (mean {level:.3f}) although rewards inside groups still differ "
        f"by {spread:.3f} on average. Check in this order: the evaluator (do its high scores go to what you want?), the task's "
        "difficulty (is there anything left to gain? chance that the policy can't influence makes spread too), then "
        "generations, temperature and learning rate"
    )
