"""Small components that declare what real ones do, and a registry of them and of what ships without torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from nat_finetune.builders import dpo, grpo
from nat_finetune.config.component import (
    EvaluatorBaseConfig,
    EvaluatorRef,
    FunctionBaseConfig,
    FunctionRef,
    LLMBaseConfig,
    LLMRef,
    ModelSource,
    Section,
    TrainerAdapterConfig,
    TTCStrategyBaseConfig,
    TTCStrategyRef,
)
from nat_finetune.datasets import files
from nat_finetune.registry import (
    Registry,
    register_evaluator,
    register_function,
    register_llm_provider,
    register_trainer_adapter,
    register_ttc_strategy,
)
from nat_finetune.trainers import backend, on_policy, preference


class InProcessConfig(LLMBaseConfig, name="in_process"):
    """A model whose tokens and weights are at hand."""

    returns_token_ids = True
    trainable_locally = True
    model: ModelSource
    temperature: float = Field(1.0, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)

    def truncating_sampling(self):
        return () if self.top_p in (None, 1.0) else ("top_p",)


class EndpointConfig(LLMBaseConfig, name="endpoint"):
    """A model behind an endpoint: text only."""

    model_name: str = Field(alias="model")
    api_key: SecretStr | None = None
    hf_token: str | None = None
    headers: dict[str, str] = Field(default_factory=dict)


class AnswerConfig(FunctionBaseConfig, name="answer"):
    """A function with every form of reference."""

    llm: LLMRef
    helper: FunctionRef | None = None
    judges: list[EvaluatorRef] = Field(default_factory=list)
    strategies: dict[str, TTCStrategyRef] = Field(default_factory=dict)
    prompt: str = "Answer."
    retries: int = Field(0, ge=0, le=9)
    style: Literal["short", "long"] = "short"
    verbose: bool = False


class StepsConfig(TTCStrategyBaseConfig, name="steps"):
    """A strategy that emits candidates."""

    step: str = "moves"

    def candidate_steps(self):
        return frozenset({self.step})


class JudgeConfig(EvaluatorBaseConfig, name="judge"):
    """An evaluator with a model."""

    llm_name: LLMRef | None = None
    word: str = "good"
    other_word: str = "bad"

    @model_validator(mode="after")
    def _two_words(self):
        if self.word == self.other_word:
            raise ValueError(f"expected two words, found {self.word!r} twice")
        return self

    @field_validator("word")
    @classmethod
    def _one_word(cls, value):
        if " " in value:
            raise ValueError(f"expected one word, found {value!r}")
        return value


class GroupAlgorithm(Section):
    """Knobs of one algorithm."""

    name: Literal["grpo"]
    clip: float = Field(0.2, gt=0)


class PairAlgorithm(Section):
    """Knobs of another."""

    name: Literal["dpo"]
    beta: float = Field(0.1, gt=0)


class HereConfig(TrainerAdapterConfig, name="here"):
    """An adapter that trains in this process."""

    needs_local_model = True
    algorithm: GroupAlgorithm | PairAlgorithm = Field(discriminator="name")
    learning_rate: float = Field(1e-4, gt=0)
    betas: tuple[float, float] = (0.9, 0.999)

    def takes(self):
        return frozenset({"group" if self.algorithm.name == "grpo" else "pair"})


class ThereConfig(TrainerAdapterConfig, name="there"):
    """An adapter whose backend runs the rollouts."""

    def takes(self):
        return frozenset({"group"})

    def runs_rollouts(self):
        return True


@register_trainer_adapter(config_type=ThereConfig)
async def there(config, builder):
    yield config


@register_llm_provider(config_type=InProcessConfig)
async def in_process(config, builder):
    yield config


@register_llm_provider(config_type=EndpointConfig)
async def endpoint(config, builder):
    yield config


@register_function(config_type=AnswerConfig)
async def answer(config, builder):
    yield config


@register_ttc_strategy(config_type=StepsConfig)
async def steps(config, builder):
    yield config


@register_evaluator(config_type=JudgeConfig)
async def judge(config, builder):
    yield config


@register_trainer_adapter(config_type=HereConfig)
async def here(config, builder):
    yield config


def registry() -> Registry:
    """These components and the shipped ones that need no model."""
    import tests.config.components as own

    made = Registry()
    for module in (own, files, grpo, dpo, backend, on_policy, preference):
        made.add_module(module, origin="tests")
    return made


WHOLE = """\
config_version: 1
llms:
  policy: {_type: in_process, model: "builtin:tiny"}
functions:
  answer: {_type: answer, llm: policy}
workflow: {_type: answer, llm: policy, helper: answer}
ttc_strategies:
  search: {_type: steps}
eval:
  general:
    max_concurrency: 4
    dataset: {_type: jsonl, file_path: data/train.jsonl}
  evaluators:
    outcome: {_type: judge}
trajectory_builders:
  groups: {_type: grpo_traj_builder}
  pairs: {_type: dpo_traj_builder, ttc_step_name: moves}
trainer_adapters:
  by_group: {_type: here, algorithm: {name: grpo}}
  by_pair: {_type: here, algorithm: {name: dpo}}
trainers:
  fresh: {_type: on_policy_trainer}
  once: {_type: preference_trainer}
finetuning:
  enabled: true
  trajectory_builder: groups
  trainer_adapter: by_group
  trainer: fresh
  reward_function: {name: outcome}
  target_functions: [answer]
  target_model: policy
  validation: {dataset: {_type: csv, file_path: data/v.csv}, metrics: [outcome]}
  test: {dataset: {_type: json, file_path: data/t.json}}
"""
"""A config with every section, right in all."""
