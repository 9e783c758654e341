"""Is there anything to learn from in a step's rollouts? Which have no score, and whether all are as good as can be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from nat_finetune.types import Cause, Failure, Rollout

ROUNDING = 1e-9
"""A score that is this close to the maximum is the maximum."""


def scored_attempts(rollouts: Iterable[Rollout]) -> list[Rollout]:
    """The rollouts that evaluators were asked about: final attempts that the infrastructure did not end."""
    return [
        rollout
        for rollout in rollouts
        if "~" not in rollout.rollout_id and (rollout.failure is None or rollout.failure.cause is Cause.POLICY)
    ]


def unscored(rollouts: Iterable[Rollout], names: Sequence[str]) -> list[Rollout]:
    """Of those, the ones of which at least one of these scores is unknown: its evaluator failed, or gave None."""
    return [rollout for rollout in scored_attempts(rollouts) if any(rollout.rewards.get(name) is None for name in names)]


def evaluator_failures(rollout: Rollout) -> list[Failure]:
    """What went wrong while a rollout was scored."""
    return [event for event in rollout.events if isinstance(event, Failure) and event.stage == "evaluator"]


def all_at_best(rollouts: Iterable[Rollout], best: Mapping[str, float], names: Sequence[str]) -> bool:
    """Whether every rollout has every one of these scores at its best, and the best of each is known.

    >>> all_at_best([], {"outcome": 1.0}, ["outcome"])
    False
    """
    asked = scored_attempts(rollouts)
    if not asked or not names or any(name not in best for name in names):
        return False
    return all(_is_best(rollout.rewards.get(name), best[name]) for rollout in asked for name in names)


def _is_best(score: float | None, best: float) -> bool:
    return score is not None and abs(score - best) <= ROUNDING * max(1.0, abs(best))
