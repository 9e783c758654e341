"""One rollout of a workflow, and one component by itself, without a run."""

import asyncio

import pytest

from nat_finetune import tracing
from nat_finetune.config.component import EvaluatorBaseConfig, FunctionBaseConfig, LLMRef
from nat_finetune.errors import ConfigError, InfrastructureFailure, PolicyFailure
from nat_finetune.evaluators.regex import RegexConfig
from nat_finetune.registry import register_evaluator, register_function
from nat_finetune.testing import FakeBuilder, FakeRecorder, ScriptedChatModel, made, run_workflow, score
from nat_finetune.types import Example, FunctionCall, ModelCall, RewardGiven


class AskTwiceConfig(FunctionBaseConfig, name="ask_twice"):
    """Asks, and has another function look at the answer."""

    llm: LLMRef


@register_function(config_type=AskTwiceConfig)
async def ask_twice(config, builder):
    llm, checked = await builder.get_llm(config.llm), await builder.get_function("check")

    async def workflow(example):
        reply = await llm.chat([{"role": "user", "content": example.input}])
        tracing.reward("asked", 1.0, call=reply)
        return await checked(reply.text)

    yield workflow


class NotANumberConfig(EvaluatorBaseConfig, name="not_a_number"):
    """Gives what is no reward."""


@register_evaluator(config_type=NotANumberConfig)
async def not_a_number(config, builder):
    async def evaluate(example, rollout):
        return "good"

    yield evaluate


async def check(text):
    if text == "bad":
        raise PolicyFailure("bad")
    return text.upper()


def test_a_rollout_is_traced_and_scored_as_in_a_run():
    llm = ScriptedChatModel(["yes"], token_ids=True)
    rollout = run_workflow(
        AskTwiceConfig(llm="policy"),
        Example("e", "well?"),
        llms={"policy": llm},
        functions={"check": check},
        evaluators={"right": RegexConfig(pattern="YES"), "odd": NotANumberConfig()},
    )
    kinds = {event.kind: event.path for event in rollout.events}
    assert (rollout.output, rollout.example_id) == ("YES", "e")
    assert rollout.rewards == {"right": 1.0, "odd": None}
    assert kinds["model_call"] == ("<workflow>",)
    assert [e.path for e in rollout.events if isinstance(e, FunctionCall)] == [("<workflow>",), ("<workflow>", "check")]
    (paid,) = (event for event in rollout.events if isinstance(event, RewardGiven))
    (call,) = (event for event in rollout.events if isinstance(event, ModelCall))
    assert (paid.call_seq, call.completion_ids) == (call.seq, (*b"yes", 256))


def test_what_the_workflow_raises_is_its_failure():
    given = {"llms": {"policy": ScriptedChatModel(["bad"])}, "functions": {"check": check}}
    assert run_workflow(AskTwiceConfig(llm="policy"), "well?", **given).failure.cause == "policy"


def test_an_entry_that_was_not_given_is_named():
    with pytest.raises(ConfigError, match=r"FakeBuilder has no functions.check: pass functions=\{'check': ...\}"):
        run_workflow(AskTwiceConfig(llm="policy"), "well?", llms={"policy": ScriptedChatModel([])})


def test_a_score_by_itself():
    assert score(RegexConfig(pattern="a"), FakeRecorder().rollout(output="abc")).value == 1.0
    with pytest.raises(InfrastructureFailure, match="expected a finite number"):
        score(NotANumberConfig(), FakeRecorder().rollout())


def test_a_config_without_a_factory_is_refused():
    class Forgotten(FunctionBaseConfig, name="forgotten"):
        """Nobody registered it."""

    async def make():
        async with made(Forgotten(), FakeBuilder()):
            pass

    with pytest.raises(ConfigError, match="no factory is registered for Forgotten"):
        asyncio.run(make())
