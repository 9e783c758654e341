"""The rewards of a rollout as they are trained: conditions applied, what is unknown kept unknown, and their weighted sum."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from nat_finetune.types import RewardTerm, Target

Rewards = Mapping[str, float | None]

_DIGITS = 12


def paid_rewards(scores: Rewards, terms: Sequence[RewardTerm]) -> dict[str, float | None]:
    """Each trained reward of a rollout, given its evaluators' scores.

    A reward with a condition is what its evaluator says where the required score is high enough, else `otherwise`; it is
    unknown where that score is.
    """
    return {term.name: _paid(scores, term) for term in terms}


def weighted_sum(rewards: Rewards, terms: Sequence[RewardTerm]) -> float | None:
    """The weighted sum of the rewards; None where one of them is unknown.

    It has 12 digits, so that sums that are equal on paper are equal: 0.1 + 0.2 and 0.3 + 0.0 must tie. One reward of weight 1
    is left as it is.

    >>> weighted_sum({"a": 0.1, "b": 0.2}, [RewardTerm("a"), RewardTerm("b")])
    0.3
    """
    values = [_known(rewards.get(term.name)) for term in terms]
    known = [value for value in values if value is not None]
    if not terms or len(known) < len(values):
        return None
    if len(terms) == 1 and terms[0].weight == 1:
        return known[0]
    total = math.fsum(term.weight * value for term, value in zip(terms, known, strict=True))
    return float(f"{round(total, _DIGITS):.{_DIGITS}g}")


def compared(rewards: Rewards, target: Target) -> tuple[float | None, ...]:
    """What of a rollout is compared with others of its group: each reward by itself, or their weighted sum."""
    if target.rewards_apart:
        return tuple(_known(rewards.get(name)) for name in target.reward_names)
    return (weighted_sum(rewards, target.rewards),)


def spread(group: Sequence[Rewards], target: Target) -> float:
    """The largest difference inside a group of what is compared: 0 only if every reward (or every sum) is equal.

    >>> tied = [{"a": 1.0, "b": 0.0}, {"a": 0.0, "b": 1.0}]
    >>> terms = (RewardTerm("a"), RewardTerm("b"))
    >>> spread(tied, Target((), "policy", terms)), spread(tied, Target((), "policy", terms, rewards_apart=True))
    (0.0, 1.0)
    """
    widest = 0.0
    for column in zip(*(compared(rewards, target) for rewards in group), strict=True):
        known = [value for value in column if value is not None]
        if known:
            widest = max(widest, max(known) - min(known))
    return widest


def total(rewards: Rewards, target: Target) -> float:
    """The weighted sum of the rewards that are known: what examples are ranked by."""
    whole = weighted_sum(rewards, target.rewards)
    if whole is not None:
        return whole
    known = {term: value for term in target.rewards if (value := _known(rewards.get(term.name))) is not None}
    return math.fsum(term.weight * value for term, value in known.items())


def unknown_rewards(rewards: Rewards, target: Target) -> tuple[str, ...]:
    """The rewards whose absence makes a rollout useless: any of a weighted sum, all of those that are compared apart."""
    unknown = tuple(name for name in target.reward_names if _known(rewards.get(name)) is None)
    return () if target.rewards_apart and len(unknown) < len(target.rewards) else unknown


def _paid(scores: Rewards, term: RewardTerm) -> float | None:
    condition = term.condition
    if condition is None:
        return scores.get(term.name)
    gate = _known(scores.get(condition.requires))
    if gate is None:
        return None
    return scores.get(term.name) if gate >= condition.at_least else condition.otherwise


def _known(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
