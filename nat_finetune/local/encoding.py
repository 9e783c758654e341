"""From a collection to what the update loop works with: rows, and the loss on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from nat_finetune.errors import ConfigError, DataError, Problem
from nat_finetune.local.demonstrations import DemonstrationObjective
from nat_finetune.local.group_objective import GroupObjective
from nat_finetune.local.group_rows import encode_groups
from nat_finetune.local.optimise import Objective
from nat_finetune.local.pair_objective import PairObjective
from nat_finetune.local.pair_rows import encode_pairs
from nat_finetune.local.policy import LocalPolicy
from nat_finetune.local.settings import PreferenceSettings, SupervisedSettings, UpdateSettings
from nat_finetune.types import Collection, Demonstration, Dropped, DropReason, Group, PreferencePair, RewardTerm, Target


@dataclass(frozen=True, slots=True)
class Encoded:
    """A collection, ready for the loop."""

    objective: Objective
    dropped: tuple[Dropped, ...]
    trained: int
    """Tokens whose gradient is not zero by construction."""
    masked: int
    """Trainable tokens whose advantage is exactly 0."""
    reward_shares: dict[str, float] = field(default_factory=dict)
    """By reward: its share of the advantages."""
    drawn: NDArray[np.bool_] | None = None
    """For each row whether the weights that are about to be trained drew its trained tokens; None: no policy drew them."""


def encode(
    collection: Collection, settings: UpdateSettings, policy: LocalPolicy, target: Target, *, agreement_bound: float
) -> Encoded:
    """Rows and loss of a collection.

    Raises:
        ConfigError, DataError: an item can't be encoded; says which and why.
    """
    algorithm, max_length = settings.algorithm, settings.max_length or policy.max_context
    _require_kind(collection, _KINDS.get(type(algorithm), Group))
    if isinstance(algorithm, PreferenceSettings):
        pairs = encode_pairs(
            [item for item in collection.items if isinstance(item, PreferencePair)],
            policy.format,
            max_length=max_length,
            truncate_prompts=settings.on_too_long == "truncate_prompt",
        )
        _check_lengths(pairs.dropped, settings)
        if collection.warm_up:
            algorithm = replace(algorithm, preference_loss_weight=0.0, sft_loss_weight=1.0, sft_average_log_probs=True)
        return Encoded(PairObjective(pairs, algorithm), tuple(pairs.dropped), pairs.trained_tokens, masked=0)
    if isinstance(algorithm, SupervisedSettings):
        imitated = DemonstrationObjective(
            [item for item in collection.items if isinstance(item, Demonstration)],
            policy.format,
            algorithm,
            max_length=max_length,
            truncate_prompts=settings.on_too_long == "truncate_prompt",
        )
        _check_lengths(imitated.dropped, settings)
        return Encoded(imitated, tuple(imitated.dropped), int(imitated.rows.trained_tokens.sum()), masked=0)
    groups = encode_groups(
        [item for item in collection.items if isinstance(item, Group)],
        algorithm.preset,
        rewards=_rewards(target),
        length_limit=algorithm.length_limit,
        max_length=max_length,
        policy_version=policy.version,
    )
    _check_lengths(groups.dropped, settings)
    masked = groups.zero_advantage_tokens
    trained = groups.trained_tokens - (0 if algorithm.needs_reference else masked)
    objective = GroupObjective(groups, algorithm, agreement_bound=agreement_bound)
    return Encoded(objective, tuple(groups.dropped), trained, masked, groups.reward_shares, groups.current)


_KINDS: dict[type, type] = {PreferenceSettings: PreferencePair, SupervisedSettings: Demonstration}


def _require_kind(collection: Collection, kind: type) -> None:
    """A config whose parts don't fit is refused before it runs; a trainer or adapter of a plugin may still mix them up."""
    others = {type(item).__name__ for item in collection.items if not isinstance(item, kind)}
    if others:
        raise ConfigError(f"step {collection.step}: this algorithm trains on a {kind.__name__}, found {', '.join(others)}")


def _check_lengths(dropped: Sequence[Dropped], settings: UpdateSettings) -> None:
    too_long = [drop for drop in dropped if drop.reason is DropReason.TOO_LONG]
    if too_long and settings.on_too_long == "fail":
        first = too_long[0]
        where = first.record or f"example {first.example_id!r}"
        raise DataError(
            f"{len(too_long)} items are too long, such as a {first.what} of {where} with {first.detail} "
            "(trainer_adapters.NAME.on_too_long: fail): raise max_length, shorten them, or set on_too_long: drop"
        )


def _rewards(target: Target) -> tuple[RewardTerm, ...]:
    if not target.rewards:
        raise ConfigError(Problem("groups are trained on a reward, and there is none", key="finetuning.reward_function"))
    return target.rewards
