"""Rollouts one by one for a framework that owns its generation: an example and a chat endpoint in, tokens and rewards out.

The workflow runs as in `collect`; the target model's calls go to the endpoint that the request names. The target model of the
config is not loaded, whatever its type.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, StrictInt, StrictStr, model_validator

from nat_finetune.compose import Composition, compose, target_of
from nat_finetune.config.fit import check_fit
from nat_finetune.config.schema import RunConfig
from nat_finetune.data.keys import example_key
from nat_finetune.data.rewards import paid_rewards, weighted_sum
from nat_finetune.data.seeds import derive_seed
from nat_finetune.data.trajectories import Credit, build_trajectory
from nat_finetune.errors import ConfigError, DataError, Problem
from nat_finetune.finetune import rollout_settings
from nat_finetune.interfaces import GroupEvaluator
from nat_finetune.llms.caller import CallerLLMConfig, CallersEndpoint, CallersModel
from nat_finetune.registry import Kind, Registration, Registry
from nat_finetune.rollout_service import RolloutRequest, RolloutService
from nat_finetune.types import Dropped, Example, Rollout, Segment, Target, Trajectory

_SETTINGS = ConfigDict(extra="forbid", frozen=True)


class AskedEndpoint(BaseModel):
    """Where the caller serves the policy."""

    model_config = _SETTINGS
    base_url: str = Field(pattern=r"^https?://[^/\s]")
    model: str = Field(min_length=1)
    api_key: SecretStr | None = None
    logprobs: Literal["raw", "processed"] = "raw"


class AskedExample(BaseModel):
    """An example that is in none of the config's datasets."""

    model_config = _SETTINGS
    id: StrictInt | StrictStr
    input: Any
    target: Any = None
    metadata: dict[str, Any] = Field(default_factory=dict)


class AskedRollout(BaseModel):
    """Body of `POST /rollouts`."""

    model_config = _SETTINGS
    example_id: StrictInt | StrictStr | None = None
    """Of an example of `eval.general.dataset`."""
    example: AskedExample | None = None
    generation: int = Field(0, ge=0)
    seed: int | None = Field(None, ge=0, lt=2**63)
    """Left out: one that no other rollout of this server has."""
    endpoint: AskedEndpoint

    @model_validator(mode="after")
    def _one_example(self) -> AskedRollout:
        if (self.example_id is None) == (self.example is None):
            raise ValueError("give either example_id or example")
        return self


@dataclass(frozen=True, slots=True)
class Counts:
    """What a server did so far."""

    examples: int
    running: int
    ended: int


class ServedRollouts:
    """Runs and scores what is asked, at most `max_concurrency` at once; more wait for their turn."""

    def __init__(
        self,
        service: RolloutService,
        model: CallersModel,
        examples: Mapping[str, Example],
        target: Target,
        *,
        seed: int,
        max_concurrency: int,
    ) -> None:
        self._service = service
        self._model = model
        self._examples = examples
        self._target = target
        self._seed = seed
        self._gate = asyncio.Semaphore(max_concurrency)
        self._numbers = count()
        self._running = 0
        self._ended = 0

    @property
    def counts(self) -> Counts:
        """How many examples it knows, and how many rollouts run and have ended."""
        return Counts(len(self._examples), self._running, self._ended)

    async def run(self, asked: AskedRollout) -> dict[str, Any]:
        """One rollout, as JSON.

        Raises:
            DataError: there is no example of this id.
        """
        example, number = self._example(asked), next(self._numbers)
        seed = derive_seed(self._seed, "served", number) if asked.seed is None else asked.seed
        request = RolloutRequest(f"served-{number:08d}", example, asked.generation, seed)
        async with self._gate, self._model.served_by(CallersEndpoint(**dict(asked.endpoint))):
            self._running += 1
            try:
                attempts = await self._service.run([request], policy_version=None, trained_rewards=self._target.needed_scores)
            finally:
                self._running -= 1
                self._ended += 1
        return rollout_answer(attempts[-1], self._target)

    def _example(self, asked: AskedRollout) -> Example:
        if asked.example is not None:
            return Example(**dict(asked.example))
        if asked.example_id is None or example_key(asked.example_id) not in self._examples:
            raise DataError(
                f"there is no example {asked.example_id!r} among the {len(self._examples)} of eval.general.dataset "
                "(ids keep their type: 1 is not '1'); give `example` for one of another dataset"
            )
        return self._examples[example_key(asked.example_id)]


def rollout_answer(rollout: Rollout, target: Target) -> dict[str, Any]:
    """What the caller is told of a rollout: tokens by segment, rewards, and what went wrong. Unknown is null, never 0."""
    built = list(build_trajectory(replace(rollout, policy_version=None), target, Credit()))
    trajectories = [made for made in built if isinstance(made, Trajectory)]
    rewards = paid_rewards(rollout.rewards, target.rewards)
    failure = rollout.failure
    return {
        "rollout_id": rollout.rollout_id,
        "example_id": rollout.example_id,
        "generation": rollout.generation,
        "seed": rollout.seed,
        "attempts": rollout.attempts,
        "segments": [segment_answer(segment) for made in trajectories for segment in made.segments],
        "reward": weighted_sum(rewards, target.rewards),
        "reward_components": rewards,
        "scores": dict(rollout.rewards),
        "reasons": dict(rollout.reasons),
        "failure": failure
        and {
            "stage": failure.stage,
            "cause": failure.cause.value,
            "error_type": failure.error_type,
            "message": failure.message,
        },
        "dropped": [
            {"what": made.what, "reason": made.reason.value, "call_seq": made.call_seq}
            for made in built
            if isinstance(made, Dropped)
        ],
        "model_calls": len(rollout.model_calls),
        "output": rollout.output,
    }


def segment_answer(segment: Segment) -> dict[str, Any]:
    """A segment as trainers with a prompt and a completion want it: the completion begins with the first sampled token.

    `loss_mask` is 0 where the completion holds what the policy did not sample: a tool's answer, the markup between turns.
    """
    first = segment.loss_mask.index(1)
    return {
        "prompt_ids": segment.token_ids[:first],
        "completion_ids": segment.token_ids[first:],
        "logprobs": segment.logprobs[first:],
        "loss_mask": segment.loss_mask[first:],
        "turns": [asdict(turn) | {"start": turn.start - first, "end": turn.end - first} for turn in segment.turns],
    }


@asynccontextmanager
async def served_rollouts(
    config: RunConfig, registry: Registry, *, max_concurrency: int | None = None
) -> AsyncIterator[ServedRollouts]:
    """The rollouts of a config, the target model's calls in the hands of whoever asks; `max_concurrency` replaces the config's.

    Raises:
        ConfigError: the parts do not fit together, the target model can't be served by somebody else, or an evaluator compares
            rollouts with one another, which here come one by one.
    """
    check_fit(config)
    target = target_of(config)
    if target.llm not in config.llms:
        raise ConfigError(Problem("there is no llm whose calls a caller could serve", key="llms"))
    model = CallersModel(target.llm, config.llms[target.llm], config.finetuning.seed)
    try:
        async with compose(_with_caller(config, target), _registry(registry, model)) as parts:
            yield ServedRollouts(
                await _service(config, parts),
                model,
                await _examples(config, parts),
                target,
                seed=config.finetuning.seed,
                max_concurrency=max_concurrency or config.eval.general.max_concurrency,
            )
    finally:
        await model.close()


def _with_caller(config: RunConfig, target: Target) -> RunConfig:
    """The config with the caller's model in the target's place, and nothing to train: what trains is the caller's affair.

    So is who serves the policy: a trainer adapter that would do that is not made.
    """
    llms = {**config.llms, target.llm: CallerLLMConfig()}
    finetuning = config.finetuning.model_copy(update={"enabled": False, "trainer_adapter": None})
    return config.model_copy(update={"llms": llms, "finetuning": finetuning})


def _registry(registry: Registry, model: CallersModel) -> Registry:
    async def callers(config: CallerLLMConfig, builder: Any) -> AsyncIterator[CallersModel]:
        yield model

    changed = Registry()
    for known in registry:
        changed.add(known)
    changed.add(Registration(Kind.LLM, CallerLLMConfig.component_name, CallerLLMConfig, callers, "nat-finetune"))
    return changed


async def _service(config: RunConfig, parts: Composition) -> RolloutService:
    evaluators = {}
    for name in dict.fromkeys([*parts.target.needed_scores, *config.finetuning.watch]):
        evaluators[name] = await parts.get_evaluator(name)
        if isinstance(evaluators[name], GroupEvaluator):
            message = "it compares the rollouts of an example with one another, and served rollouts come one by one"
            raise ConfigError(Problem(message, key=f"eval.evaluators.{name}", hint="train on one that scores each by itself"))
    workflow = await parts.get_workflow()
    return RolloutService(workflow, evaluators, rollout_settings(config), enter_rollout=parts.enter_rollout)


async def _examples(config: RunConfig, parts: Composition) -> dict[str, Example]:
    dataset = config.eval.general.dataset
    if dataset is None:
        return {}
    return {example_key(example.id): example for example in await parts.load_examples(dataset, "eval.general.dataset")}
