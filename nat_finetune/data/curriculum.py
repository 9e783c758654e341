"""Which groups to train on: easiest first, more of them as training goes on (NAT's curriculum learning, as documented).

A group is the known rewards of one example's rollouts. Epochs count from 0.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    reasons: Mapping[int, DropReason] = field(default_factory=dict)
    """Why a group is not selected, by its position."""
    difficulty: Mapping[int, float] = field(default_factory=dict)
    """Mean reward of each kept group, by its position."""


def select_groups(
    rewards_P_G: Sequence[Sequence[float | None]],
    rules: CurriculumRules,
    *,
    epoch: int,
    seed: int,
    others: Sequence[float] = (),
    spreads_P: Sequence[float] | None = None,
) -> Selected:
    """Apply the rules to one epoch's groups; draws differ between epochs and groups.

    `others` are mean rewards of examples that this step does not hold, as they were seen last: the groups are ranked among
    them. `spreads_P` are the groups' spreads where these are not those of the rewards (several components, step rewards).

    Raises:
        NoTrainableSignal: groups were given and none is left.
    """
    selected = apply_rules(rewards_P_G, rules, epoch=epoch, seed=seed, others=others, spreads_P=spreads_P)
    if rewards_P_G and not selected.groups:
        raise NoTrainableSignal(f"no_trainable_signal: none of {len(rewards_P_G)} groups has rewards that differ enough")
    return selected


def apply_rules(
    rewards_P_G: Sequence[Sequence[float | None]],
    rules: CurriculumRules,
    *,
    epoch: int,
    seed: int,
    others: Sequence[float] = (),
    spreads_P: Sequence[float] | None = None,
) -> Selected:
    """As `select_groups`, with nothing selected where nothing is left."""
    if not rules.enabled:
        everything = tuple(tuple(range(len(rewards))) for rewards in rewards_P_G)
        return Selected(tuple(range(len(everything))), everything, rules.initial_percentile, -1, 0, ())
    kept, dropped, reasons = _comparable(rewards_P_G, rules, spreads_P)
    percentile = rules.percentile(epoch)
    difficulty = {position: fmean(known.values()) for position, known in kept.items()}
    chosen = _easiest(difficulty, others, percentile, rules)
    left = [position for position in kept if position not in chosen]
    reasons |= dict.fromkeys(left, DropReason.CURRICULUM)
    dropped += [Dropped("group", DropReason.CURRICULUM)] * len(left)
    members = tuple(
        _subsample(list(kept[position]), rules.random_subsample, derive_seed(seed, "random_subsample", epoch, position))
        for position in chosen
    )
    left_out = sum(len(kept[position]) for position in chosen) - sum(len(drawn) for drawn in members)
    dropped += [Dropped("trajectory", DropReason.RANDOM_SUBSAMPLE)] * left_out
    last = rules.last_expansion(epoch)
    return Selected(tuple(chosen), members, percentile, last, len(kept), tuple(dropped), reasons, difficulty)


def _easiest(difficulty: Mapping[int, float], others: Sequence[float], percentile: float, rules: CurriculumRules) -> list[int]:
    """Positions of the groups among the easiest share of these and the others, at least one, in training order."""
    ranked: list[tuple[float, int | None]] = [(mean, position) for position, mean in difficulty.items()]
    ranked += [(mean, None) for mean in others]
    ranked.sort(key=lambda entry: entry[0], reverse=not rules.sort_ascending)
    share = ranked[: max(1, math.ceil(len(ranked) * percentile - ROUNDING))]
    chosen = [position for _, position in share if position is not None]
    return chosen or [position for _, position in ranked if position is not None][:1]


def _comparable(
    rewards_P_G: Sequence[Sequence[float | None]], rules: CurriculumRules, spreads_P: Sequence[float] | None
) -> tuple[dict[int, dict[int, float]], list[Dropped], dict[int, DropReason]]:
    """By position of each group that is kept, its known rewards by position; and why the others are not."""
    kept: dict[int, dict[int, float]] = {}
    dropped: list[Dropped] = []
    reasons: dict[int, DropReason] = {}
    for position, rewards in enumerate(rewards_P_G):
        known = {index: reward for index, reward in enumerate(rewards) if reward is not None and not math.isnan(reward)}
        if len(known) < 2:
            reasons[position] = DropReason.TOO_FEW_REWARDS
        elif not reaches(_spread(known, position, spreads_P), rules.min_reward_diff):
            reasons[position] = DropReason.LOW_SPREAD
        else:
            kept[position] = known
            dropped += [Dropped("trajectory", DropReason.UNKNOWN_REWARD)] * (len(rewards) - len(known))
    dropped += [Dropped("group", reason) for reason in reasons.values()]
    return kept, dropped, reasons


def _spread(known: Mapping[int, float], position: int, spreads_P: Sequence[float] | None) -> float:
    return max(known.values()) - min(known.values()) if spreads_P is None else spreads_P[position]


def _subsample(members: Sequence[int], share: float | None, seed: int) -> tuple[int, ...]:
    if share is None:
        return tuple(members)
    count = min(len(members), max(2, math.ceil(share * len(members) - ROUNDING)))
    return tuple(sorted(random.Random(seed).sample(members, count)))
