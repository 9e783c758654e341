"""What TRL's config classes are given, from the settings of the adapter: every knob has one place here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nat_finetune_plugins.trl.settings import DpoConfig, GroupsConfig, TRLTrainerAdapterConfig

from nat_finetune.errors import ConfigError, Problem
from nat_finetune.types import HandOver, Target

_LOSS_OF = {"token_mean": "dapo", "sequence_mean": "grpo", "constant_length": "dr_grpo"}
"""Our word for what counts equally -> TRL's `loss_type`."""


def common_arguments(config: TRLTrainerAdapterConfig, *, seed: int, device: str, dtype: str) -> dict[str, Any]:
    """What all trainers are told."""
    return {
        "learning_rate": config.learning_rate,
        "weight_decay": config.weight_decay,
        "adam_beta1": config.betas[0],
        "adam_beta2": config.betas[1],
        "max_grad_norm": config.max_grad_norm,
        "gradient_checkpointing": config.activation_checkpointing,
        "seed": seed % 2**32,
        "use_cpu": device == "cpu",
        "bf16": dtype == "bfloat16",
        "fp16": dtype == "float16",
        "report_to": [],
        "save_strategy": "no",
        "eval_strategy": "no",
        "logging_strategy": "steps",
        "logging_steps": 1,
        "disable_tqdm": True,
        "remove_unused_columns": False,
    }


def item_arguments(config: TRLTrainerAdapterConfig, items: int) -> dict[str, Any]:
    """Of the trainers that go over items."""
    step = min(config.batch_size or items, items)
    micro = min(config.micro_batch_size or step, step)
    return {
        "num_train_epochs": config.epochs,
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": -(-step // micro),
        "max_length": None,
    }


def pair_arguments(algorithm: DpoConfig) -> dict[str, Any]:
    """Of `DPOConfig`."""
    return {
        "loss_type": [algorithm.loss],
        "beta": algorithm.strength,
        "label_smoothing": algorithm.label_smoothing,
        "disable_dropout": True,
    }


def group_arguments(
    config: TRLTrainerAdapterConfig,
    algorithm: GroupsConfig,
    work: HandOver,
    target: Target,
    *,
    temperature: float,
    longest: int,
) -> dict[str, Any]:
    """Of `GRPOConfig`.

    Raises:
        ConfigError: the rollouts of a step can't be divided as asked.
    """
    rollouts = work.examples_per_step * work.generations
    step = config.batch_size or rollouts
    if rollouts % step:
        of = f"{work.examples_per_step} examples of {work.generations}"
        message = f"an update has {rollouts} rollouts ({of}), which is no multiple of {step}"
        raise ConfigError(Problem(message, key="trainer_adapters.NAME.batch_size", hint=f"such as {rollouts}"))
    micro = config.micro_batch_size or step
    apart = algorithm.name == "gdpo"
    return {
        "num_generations": work.generations,
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": step // micro,
        "steps_per_generation": rollouts // micro,
        "num_iterations": config.epochs,
        "num_train_epochs": 1,  # the order that it is given holds all passes
        "beta": algorithm.kl_coefficient,
        "epsilon": algorithm.clip_low,
        "epsilon_high": algorithm.clip_high,
        "delta": algorithm.ratio_cap,
        "importance_sampling_level": algorithm.ratio,
        "loss_type": _LOSS_OF[algorithm.reduction],
        "scale_rewards": algorithm.scale,
        "multi_objective_aggregation": "normalize_then_sum" if apart else "sum_then_normalize",
        "reward_weights": [term.weight for term in target.rewards] if apart else [1.0],
        "temperature": temperature,
        "max_completion_length": algorithm.length_limit or longest,
        "shuffle_dataset": False,
        "disable_dropout": True,
    }


def optimiser_steps(config: TRLTrainerAdapterConfig, work: HandOver, arguments: Mapping[str, Any]) -> int:
    """Optimiser steps of a training that was handed over."""
    updates = arguments["steps_per_generation"] // arguments["gradient_accumulation_steps"]
    return work.steps * config.epochs * int(updates)
