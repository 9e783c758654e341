"""Which groups to train on: easiest first, more of them as training goes on (NAT's curriculum learning, as documented).

A group is the known rewards of one example's rollouts. Epochs count from 0.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from nat_finetune.data.pairs import reaches
from nat_finetune.errors import ConfigError, NoTrainableSignal
from nat_finetune.types import Dropped, DropReason

ROUNDING = 1e-9
"""A percentile of 0.1 + 0.2 selects three of ten groups, not four."""


@dataclass(frozen=True, slots=True)
class CurriculumRules:
    """NAT's fields and defaults."""

    enabled: bool = False
    initial_percentile: float = 0.3
    increment_percentile: float = 0.2
    expansion_interval: int = 5
    min_reward_diff: float = 0.1
    sort_ascending: bool = False
    random_subsample: float | None = None

    def __post_init__(self) -> None:
        if self.random_subsample is not None and not 0 < self.random_subsample <= 1:
            raise ConfigError(f"config: random_subsample must be in (0, 1], found {self.random_subsample}")

    def percentile(self, epoch: int) -> float:
        """Share of the kept groups that an epoch trains on."""
        return min(1.0, self.initial_percentile + self.increment_percentile * (epoch // self.expansion_interval))

    def last_expansion(self, epoch: int) -> int:
        """The last epoch, up to this one, at which the percentile grew; -1 if it never did."""
        grown = [e for e in range(1, epoch + 1) if self.percentile(e) > self.percentile(e - 1)]
        return grown[-1] if grown else -1


@dataclass(frozen=True, slots=True)
class Selected:
    """What an epoch trains on."""

    groups: tuple[int, ...]
    """Positions of the selected groups in the input, in training order."""
    members: tuple[tuple[int, ...], ...]
    """For each selected group, the positions of its rollouts that are trained."""
    percentile: float
    last_expansion_epoch: int
    kept_groups: int
    """Groups that passed the spread rule."""
    dropped: tuple[Dropped, ...]


def select_groups(rewards_P_G: Sequence[Sequence[float | None]], rules: CurriculumRules, *, epoch: int, seed: int) -> Selected:
    """Apply the rules to one epoch's groups.

    Raises:
        NoTrainableSignal: groups were given and none is left.
    """
    everything = tuple(tuple(range(len(rewards))) for rewards in rewards_P_G)
    if not rules.enabled or not rewards_P_G:
        return Selected(tuple(range(len(rewards_P_G))), everything, rules.initial_percentile, -1, 0, ())
    dropped: list[Dropped] = []
    kept: list[tuple[int, list[int]]] = []
    for position, rewards in enumerate(rewards_P_G):
        known = [index for index, reward in enumerate(rewards) if reward is not None and not math.isnan(reward)]
        reason = _problem([rewards[index] or 0.0 for index in known], rules)
        if reason is not None:
            dropped.append(Dropped("group", reason))
            continue
        dropped += [Dropped("trajectory", DropReason.UNKNOWN_REWARD)] * (len(rewards) - len(known))
        kept.append((position, known))
    if not kept:
        raise NoTrainableSignal(f"no_trainable_signal: all {len(rewards_P_G)} groups were dropped")
    sign = 1.0 if rules.sort_ascending else -1.0
    ordered = sorted(kept, key=lambda group: sign * fmean(rewards_P_G[group[0]][index] or 0.0 for index in group[1]))
    percentile = rules.percentile(epoch)
    count = max(1, math.ceil(len(kept) * percentile - ROUNDING))
    dropped += [Dropped("group", DropReason.CURRICULUM)] * (len(ordered) - count)
    chosen = ordered[:count]
    members = [_subsample(group, rules, random.Random(seed * 1_000_003 + position)) for position, group in chosen]
    dropped += [
        Dropped("trajectory", DropReason.RANDOM_SUBSAMPLE)
        for (_, group), drawn in zip(chosen, members, strict=True)
        for _ in range(len(group) - len(drawn))
    ]
    return Selected(
        tuple(position for position, _ in chosen),
        tuple(members),
        percentile,
        rules.last_expansion(epoch),
        len(kept),
        tuple(dropped),
    )


def _problem(known: Sequence[float], rules: CurriculumRules) -> DropReason | None:
    if len(known) < 2:
        return DropReason.TOO_FEW_REWARDS
    scale = max(abs(value) for value in known)
    if not reaches(max(known) - min(known), rules.min_reward_diff, scale=scale):
        return DropReason.LOW_SPREAD
    return None


def _subsample(group: Sequence[int], rules: CurriculumRules, generator: random.Random) -> tuple[int, ...]:
    if rules.random_subsample is None:
        return tuple(group)
    count = max(2, math.ceil(rules.random_subsample * len(group) - ROUNDING))
    return tuple(sorted(generator.sample(list(group), min(count, len(group)))))
