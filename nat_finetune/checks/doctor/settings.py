"""Settings that are allowed and seldom meant."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from nat_finetune.adapters.group_settings import PolicyGradientConfig
from nat_finetune.adapters.local_settings import LocalTrainerAdapterConfig, PreferenceConfig
from nat_finetune.builders.grpo import GRPOTrajBuilderConfig
from nat_finetune.checks.doctor.chosen import builder_of, local_adapter_of, target_llm_of
from nat_finetune.checks.doctor.finding import Finding, note, warning
from nat_finetune.config.schema import RunConfig
from nat_finetune.llms.local import LocalLLMConfig
from nat_finetune.llms.openai import OpenAILLMConfig

LARGE = 50_000_000
"""Parameters from which the rates below are what is usual; smaller models take larger ones."""
LORA_RATES, FULL_RATES = (1e-5, 1e-3), (1e-8, 5e-5)
"""Learning rates of AdamW that are usual: outside of them a run hardly moves, or breaks."""
LOW_TEMPERATURE = 0.5
FEW_GENERATIONS = 4
WIDE_CLIP = 0.6
BETAS = (0.01, 1.0)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is known of model and data; None: unknown."""

    parameters: int | None = None
    examples: int | None = None


def settings_findings(config: RunConfig, sizes: Sizes) -> Iterator[Finding]:
    """Everything that can be said of settings without running anything."""
    adapter = local_adapter_of(config)
    if adapter is not None:
        key = f"trainer_adapters.{config.finetuning.trainer_adapter}"
        yield from _learning_rate(adapter, sizes, key)
        yield from _warmup(config, adapter, sizes, key)
        yield from _algorithm(adapter, key)
    yield from _sampling(config)
    yield from _groups(config)
    if config.finetuning.test is None and config.finetuning.validation is None:
        yield note(
            "settings.no-test",
            "neither finetuning.test nor finetuning.validation: the run can't say whether it helped",
            "name held-out examples (finetuning.test.dataset), or a share of them (finetuning.split.test)",
            "finetuning.test",
        )


def _learning_rate(adapter: LocalTrainerAdapterConfig, sizes: Sizes, key: str) -> Iterator[Finding]:
    rate, lora = adapter.learning_rate, adapter.lora is not None
    low, high = LORA_RATES if lora else FULL_RATES
    small = sizes.parameters is not None and sizes.parameters < LARGE
    what = "an adapter (lora)" if lora else "all weights"
    if rate < low:
        why = ": it is one for all weights" if lora else ""
        message = f"{rate:g} hardly moves {what}{why}"
        yield warning("settings.learning-rate-low", message, f"try {2e-4 if lora else 1e-6:g}", f"{key}.learning_rate")
    elif rate > high and not small:
        why = "" if lora else ": it is one for adapters"
        size = "" if lora or sizes.parameters is None else f" of a model of {sizes.parameters / 1e6:,.0f} million parameters"
        fix = "try 2e-4" if lora else "try 1e-6 to 1e-5, or train an adapter: `lora: {rank: 16, alpha: 32}`"
        yield warning(
            "settings.learning-rate-high", f"{rate:g} is likely to break {what}{size}{why}", fix, f"{key}.learning_rate"
        )


def _warmup(config: RunConfig, adapter: LocalTrainerAdapterConfig, sizes: Sizes, key: str) -> Iterator[Finding]:
    """How many optimiser steps a run of groups makes is known beforehand; of pairs it is not."""
    builder, finetuning = builder_of(config), config.finetuning
    if builder is None or builder.makes != "group" or sizes.examples is None or not adapter.warmup_steps:
        return
    step = min(finetuning.examples_per_step or sizes.examples, sizes.examples)
    trajectories = step * builder.generations
    each = adapter.epochs * math.ceil(trajectories / min(adapter.batch_size or trajectories, trajectories))
    steps = finetuning.num_epochs * math.ceil(sizes.examples / step) * each
    if adapter.warmup_steps >= steps:
        message = f"{adapter.warmup_steps} steps of warm-up, and the run makes {steps}: its learning rate is never reached"
        yield warning("settings.warmup-long", message, f"try {max(1, steps // 20)}", f"{key}.warmup_steps")


def _algorithm(adapter: LocalTrainerAdapterConfig, key: str) -> Iterator[Finding]:
    algorithm = adapter.algorithm
    if isinstance(algorithm, PreferenceConfig) and not BETAS[0] <= algorithm.strength <= BETAS[1]:
        effect = "hardly holds" if algorithm.strength < BETAS[0] else "hardly lets go of"
        message = f"beta {algorithm.strength:g} {effect} the policy"
        name = "beta" if algorithm.ref_policy_kl_penalty is None else "ref_policy_kl_penalty"
        yield warning("settings.beta-unusual", message, "try 0.1", f"{key}.algorithm.{name}")
    if isinstance(algorithm, PolicyGradientConfig):
        high = algorithm.preset().clip_high
        # GSPO's and CISPO's own ranges are other quantities: only what the user set is looked at.
        if (
            algorithm.clip_high is not None
            and high is not None
            and algorithm.preset().surrogate == "clipped"
            and high > WIDE_CLIP
        ):
            message = f"ratios are clipped above {1 + high:g} only: one update may go far"
            yield warning("settings.clip-wide", message, "try 0.2 to 0.3", f"{key}.algorithm.clip_high")


def _sampling(config: RunConfig) -> Iterator[Finding]:
    builder = builder_of(config)
    name, llm = target_llm_of(config)
    if builder is None or builder.record_dataset() is not None or builder.makes == "demonstration":
        return
    temperature = llm.temperature if isinstance(llm, LocalLLMConfig | OpenAILLMConfig) else None
    if temperature is not None and temperature < LOW_TEMPERATURE:
        compared = "rollouts" if builder.makes == "group" else "candidates"
        message = f"at temperature {temperature:g} {compared} of one example are alike, and there is little to compare"
        yield warning("settings.temperature-low", message, "set temperature: 1.0", f"llms.{name}.temperature")


def _groups(config: RunConfig) -> Iterator[Finding]:
    builder = builder_of(config)
    if isinstance(builder, GRPOTrajBuilderConfig) and builder.num_generations < FEW_GENERATIONS:
        yield warning(
            "settings.few-generations",
            f"a group of {builder.num_generations}: whether a rollout is good is told by {builder.num_generations - 1} other",
            "try 8",
            f"trajectory_builders.{config.finetuning.trajectory_builder}.num_generations",
        )
