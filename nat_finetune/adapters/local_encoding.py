"""From a collection and the adapter's config to what the update loop in `local/` works with."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from nat_finetune.adapters.local_settings import LoraConfig, PolicyGradientConfig, PreferenceConfig
from nat_finetune.errors import ConfigError, Problem
from nat_finetune.local.group_objective import GroupObjective, Importance, PolicyGradientSettings
from nat_finetune.local.group_rows import encode_groups
from nat_finetune.local.lora import LoraSettings
from nat_finetune.local.optimise import LoopSettings, Objective
from nat_finetune.local.optimiser import OptimiserSettings
from nat_finetune.local.pair_objective import PairObjective, PreferenceSettings
from nat_finetune.local.pair_rows import encode_pairs
from nat_finetune.local.policy import LocalPolicy
from nat_finetune.types import Collection, Dropped, Group, PreferencePair, Target

if TYPE_CHECKING:
    from nat_finetune.adapters.local_settings import LocalTrainerAdapterConfig


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
    collection: Collection, config: LocalTrainerAdapterConfig, policy: LocalPolicy, target: Target, *, bound: float
) -> Encoded:
    """Rows and loss of a collection.

    Raises:
        ConfigError, DataError: an item can't be encoded; says which and why.
    """
    algorithm, max_length = config.algorithm, config.max_length or policy.max_context
    if isinstance(algorithm, PreferenceConfig):
        pairs = encode_pairs(
            [item for item in collection.items if isinstance(item, PreferencePair)], policy.format, max_length=max_length
        )
        objective = PairObjective(pairs, _preference_settings(algorithm))
        return Encoded(objective, tuple(pairs.dropped), pairs.trained_tokens, masked=0)
    settings = _policy_gradient_settings(algorithm, bound)
    groups = encode_groups(
        [item for item in collection.items if isinstance(item, Group)],
        settings.preset,
        reward=_reward(target),
        length_limit=algorithm.length_limit,
        max_length=max_length,
        policy_version=policy.version,
    )
    masked = groups.zero_advantage_tokens
    trained = groups.trained_tokens - (0 if settings.preset.kl_coefficient else masked)
    return Encoded(GroupObjective(groups, settings), tuple(groups.dropped), trained, masked)


def needs_reference(config: LocalTrainerAdapterConfig) -> bool:
    """Whether the update is held against the untrained policy."""
    algorithm = config.algorithm
    return isinstance(algorithm, PreferenceConfig) or bool(algorithm.preset().kl_coefficient)


def optimiser_settings(config: LocalTrainerAdapterConfig) -> OptimiserSettings:
    """The optimiser's part of the config."""
    return OptimiserSettings(
        learning_rate=config.learning_rate,
        betas=config.betas,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        schedule=config.schedule,
        warmup_steps=config.warmup_steps,
        total_steps=config.total_steps,
    )


def lora_settings(config: LoraConfig | None) -> LoraSettings | None:
    """The adapter's part of the config."""
    return None if config is None else LoraSettings(config.rank, config.alpha, config.target_modules)


def _preference_settings(config: PreferenceConfig) -> PreferenceSettings:
    own = {f.name for f in fields(PreferenceSettings)} - {"beta"}
    return PreferenceSettings(beta=config.strength, **{name: getattr(config, name) for name in own})


def loop_settings(config: LocalTrainerAdapterConfig, *, seed: int) -> LoopSettings:
    """The loop's part of the config."""
    return LoopSettings(
        epochs=config.epochs,
        batch_size=config.batch_size,
        max_tokens_per_microbatch=config.max_tokens_per_microbatch,
        activation_checkpointing=config.activation_checkpointing,
        seed=seed,
    )


def _policy_gradient_settings(algorithm: PolicyGradientConfig, bound: float) -> PolicyGradientSettings:
    chosen = algorithm.importance
    return PolicyGradientSettings(
        preset=algorithm.preset(),
        length_limit=algorithm.length_limit,
        importance=None if chosen is None else Importance(chosen.mode, chosen.low, chosen.high),
        agreement_bound=bound,
    )


def _reward(target: Target) -> str:
    if len(target.reward_names) != 1:
        found = f"this algorithm trains on one reward, found {len(target.reward_names)}"
        raise ConfigError(Problem(found, key="finetuning.reward_function"))
    return target.reward_names[0]
