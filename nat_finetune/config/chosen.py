"""The entries that `finetuning` names; None where it names none, or one that is not there."""

from __future__ import annotations

from nat_finetune.config.component import LLMBaseConfig, TrainerAdapterConfig, TrainerConfig, TrajectoryBuilderConfig
from nat_finetune.config.schema import RunConfig


def builder_of(config: RunConfig) -> TrajectoryBuilderConfig | None:
    """`finetuning.trajectory_builder`."""
    return config.trajectory_builders.get(config.finetuning.trajectory_builder or "")


def adapter_of(config: RunConfig) -> TrainerAdapterConfig | None:
    """`finetuning.trainer_adapter`."""
    return config.trainer_adapters.get(config.finetuning.trainer_adapter or "")


def trainer_of(config: RunConfig) -> TrainerConfig | None:
    """`finetuning.trainer`."""
    return config.trainers.get(config.finetuning.trainer or "")


def target_llm_of(config: RunConfig) -> tuple[str, LLMBaseConfig | None]:
    """Name and entry of `finetuning.target_model`, or of the only llm."""
    named = config.finetuning.target_model
    name = named if named is not None else next(iter(config.llms), "")
    return name, None if named is None and len(config.llms) != 1 else config.llms.get(name)
