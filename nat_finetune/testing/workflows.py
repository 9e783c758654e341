"""One rollout of a workflow, with models and functions of the test's own: traced and scored as in a run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from types import MappingProxyType
from typing import Any

from nat_finetune.config.component import EvaluatorBaseConfig, FunctionBaseConfig
from nat_finetune.interfaces import ChatModel, Evaluator
from nat_finetune.rollout_service import RolloutRequest, RolloutService, RolloutSettings, as_score
from nat_finetune.testing.parts import FakeBuilder, made
from nat_finetune.testing.rollouts import WORKFLOW
from nat_finetune.tracing.traced import TracedFunction
from nat_finetune.types import Example, Rollout, Score

_EMPTY: Mapping[str, Any] = MappingProxyType({})
_SETTINGS = RolloutSettings(max_concurrency=1, timeout_seconds=60.0, retries=0, failure_reward=None)


def run_workflow(
    config: FunctionBaseConfig,
    example: Example | Any,
    *,
    llms: Mapping[str, ChatModel] = _EMPTY,
    functions: Mapping[str, Callable[..., Awaitable[Any]]] = _EMPTY,
    ttc_strategies: Mapping[str, Any] = _EMPTY,
    evaluators: Mapping[str, EvaluatorBaseConfig] = _EMPTY,
) -> Rollout:
    """Run the workflow of a config once on an example, or on what is the input of one.

        rollout = run_workflow(SayNumberConfig(llm="policy"), "a number?", llms={"policy": ScriptedChatModel(["4"])})

    Call it where no event loop runs. What the workflow raises is in `Rollout.failure`, as in a run.

    Raises:
        ConfigError: a component can't be made, or asks for an entry that was not given.
    """
    given = example if isinstance(example, Example) else Example("example", example)

    async def once() -> Rollout:
        async with AsyncExitStack() as stack:
            builder = FakeBuilder(llms=llms, functions=functions, ttc_strategies=ttc_strategies)
            workflow = await stack.enter_async_context(made(config, builder))
            scores = {name: await stack.enter_async_context(made(entry, builder)) for name, entry in evaluators.items()}
            service = RolloutService(TracedFunction(WORKFLOW, workflow), scores, _SETTINGS)
            (rollout,) = await service.run([RolloutRequest("rollout", given, 0, 0)], policy_version=0)
            return rollout

    return asyncio.run(once())


def score(
    config: EvaluatorBaseConfig, rollout: Rollout, example: Example | None = None, *, llms: Mapping[str, ChatModel] = _EMPTY
) -> Score:
    """What the evaluator of a config says of one rollout; without `example`, of one with the rollout's id and nothing else.

    Raises:
        InfrastructureFailure: it gave something that can't be a reward, such as NaN.
    """
    given = example or Example(rollout.example_id, None)

    async def once() -> Score:
        async with made(config, FakeBuilder(llms=llms)) as evaluator:
            scoring: Evaluator = evaluator
            return as_score(await scoring(given, rollout))

    return asyncio.run(once())
