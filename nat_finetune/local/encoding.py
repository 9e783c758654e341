"""From a collection to what the update loop works with: rows, and the loss on them."""

from __future__ import annotations

from dataclasses import dataclass

from nat_finetune.errors import ConfigError, Problem
from nat_finetune.local.group_objective import GroupObjective
from nat_finetune.local.group_rows import encode_groups
from nat_finetune.local.optimise import Objective
from nat_finetune.local.pair_objective import PairObjective
from nat_finetune.local.pair_rows import encode_pairs
from nat_finetune.local.policy import LocalPolicy
from nat_finetune.local.settings import PreferenceSettings, UpdateSettings
from nat_finetune.types import Collection, Dropped, Group, PreferencePair, Target


@dataclass(frozen=True, slots=True)
class Encoded:
    """A collection, ready for the loop."""

    objective: Objective
    dropped: tuple[Dropped, ...]
    trained: int
    """Tokens whose gradient is not zero by construction."""
    masked: int
    """Trainable tokens whose advantage is exactly 0."""


def encode(
    collection: Collection, settings: UpdateSettings, policy: LocalPolicy, target: Target, *, agreement_bound: float
) -> Encoded:
    """Rows and loss of a collection.

    Raises:
        ConfigError, DataError: an item can't be encoded; says which and why.
    """
    algorithm, max_length = settings.algorithm, settings.max_length or policy.max_context
    if isinstance(algorithm, PreferenceSettings):
        pairs = encode_pairs(
            [item for item in collection.items if isinstance(item, PreferencePair)], policy.format, max_length=max_length
        )
        return Encoded(PairObjective(pairs, algorithm), tuple(pairs.dropped), pairs.trained_tokens, masked=0)
    groups = encode_groups(
        [item for item in collection.items if isinstance(item, Group)],
        algorithm.preset,
        reward=_reward(target),
        length_limit=algorithm.length_limit,
        max_length=max_length,
        policy_version=policy.version,
    )
    masked = groups.zero_advantage_tokens
    trained = groups.trained_tokens - (0 if algorithm.needs_reference else masked)
    objective = GroupObjective(groups, algorithm, agreement_bound=agreement_bound)
    return Encoded(objective, tuple(groups.dropped), trained, masked)


def _reward(target: Target) -> str:
    if len(target.reward_names) != 1:
        found = f"this algorithm trains on one reward, found {len(target.reward_names)}"
        raise ConfigError(Problem(found, key="finetuning.reward_function"))
    return target.reward_names[0]
