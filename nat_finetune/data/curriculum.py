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
from nat_finetune.data.seeds import derive_seed
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
        shares = {
            "initial_percentile": self.initial_percentile,
            "increment_percentile": self.increment_percentile,
            "random_subsample": self.random_subsample,
        }
        for name, share in shares.items():
            if share is not None and not 0 < share <= 1:
                raise ConfigError(f"config: {name} must be above 0 and at most 1, found {share}")
        if self.expansion_interval < 1:
            raise ConfigError(f"config: expansion_interval must be at least 1 epoch, found {self.expansion_interval}")

    def percentile(self, epoch: int) -> float:
        """Share of the kept groups that an epoch trains on."""
        share = self.initial_percentile + self.increment_percentile * (epoch // self.expansion_interval)
        return 1.0 if share > 1 - ROUNDING else share

    def last_expansion(self, epoch: int) -> int:
        """The last epoch, up to this one, at which the percentile grew; -1 if it never did."""
        grown = (e for e in range(epoch, 0, -1) if self.percentile(e) > self.percentile(e - 1))
        return next(grown, -1)


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
    """Apply the rules to one epoch's groups; draws differ between epochs and groups.

    Raises:
        NoTrainableSignal: groups were given and none is left.
    """
    if not rules.enabled:
        everything = tuple(tuple(range(len(rewards))) for rewards in rewards_P_G)
        return Selected(tuple(range(len(everything))), everything, rules.initial_percentile, -1, 0, ())
    kept, dropped = _comparable(rewards_P_G, rules)
    if rewards_P_G and not kept:
        raise NoTrainableSignal(f"no_trainable_signal: none of {len(rewards_P_G)} groups has rewards that differ enough")
    percentile = rules.percentile(epoch)
    ordered = sorted(kept, key=lambda position: fmean(kept[position].values()), reverse=not rules.sort_ascending)
    chosen = ordered[: max(1, math.ceil(len(kept) * percentile - ROUNDING))]
    dropped += [Dropped("group", DropReason.CURRICULUM)] * (len(ordered) - len(chosen))
    members = tuple(
        _subsample(list(kept[position]), rules.random_subsample, derive_seed(seed, "random_subsample", epoch, position))
        for position in chosen
    )
    left_out = sum(len(kept[position]) for position in chosen) - sum(len(drawn) for drawn in members)
    dropped += [Dropped("trajectory", DropReason.RANDOM_SUBSAMPLE)] * left_out
    return Selected(tuple(chosen), members, percentile, rules.last_expansion(epoch), len(kept), tuple(dropped))


def _comparable(
    rewards_P_G: Sequence[Sequence[float | None]], rules: CurriculumRules
) -> tuple[dict[int, dict[int, float]], list[Dropped]]:
    """By position of each group that is kept, its known rewards by position."""
    kept: dict[int, dict[int, float]] = {}
    dropped: list[Dropped] = []
    for position, rewards in enumerate(rewards_P_G):
        known = {index: reward for index, reward in enumerate(rewards) if reward is not None and not math.isnan(reward)}
        if len(known) < 2:
            dropped.append(Dropped("group", DropReason.TOO_FEW_REWARDS))
        elif not reaches(max(known.values()) - min(known.values()), rules.min_reward_diff):
            dropped.append(Dropped("group", DropReason.LOW_SPREAD))
        else:
            kept[position] = known
            dropped += [Dropped("trajectory", DropReason.UNKNOWN_REWARD)] * (len(rewards) - len(known))
    return kept, dropped


def _subsample(members: Sequence[int], share: float | None, seed: int) -> tuple[int, ...]:
    if share is None:
        return tuple(members)
    count = min(len(members), max(2, math.ceil(share * len(members) - ROUNDING)))
    return tuple(sorted(random.Random(seed).sample(members, count)))
