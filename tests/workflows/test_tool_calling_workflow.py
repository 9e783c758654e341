"""The workflow in a composition of the shipped config: what is recorded, and what evaluators say of it."""

from __future__ import annotations

import pytest
import torch
from nat_finetune_workflows.tool_calling.answers import canonical_text
from nat_finetune_workflows.tool_calling.rewards import wanted_call

from nat_finetune.compose import compose
from nat_finetune.config.load import load_config
from nat_finetune.errors import DataError, Stage
from nat_finetune.finetune import rollout_settings
from nat_finetune.registry import Registry
from nat_finetune.rollout_service import RolloutService, requests_for
from nat_finetune.types import Cause, Example, Failure, ModelCall, Rollout, ToolCall
from tests.source_tree import ROOT

NAMES = ("format", "correctness", "short", "exact_call")


@pytest.fixture(scope="module")
def registry():
    return Registry.installed()


@pytest.fixture
async def parts(registry):
    loaded = load_config(ROOT / "configs" / "gdpo_tool_calling.yml", [], registry=registry)
    async with compose(loaded.config, registry) as parts:
        yield loaded.config, parts


async def test_rollouts_are_graded_and_calls_are_recorded(parts):
    config, live = parts
    examples = (await live.load_examples(config.finetuning.test.dataset, "test"))[:6]
    evaluators = {name: await live.get_evaluator(name) for name in NAMES}
    service = RolloutService(await live.get_workflow(), evaluators, rollout_settings(config), enter_rollout=live.enter_rollout)
    rollouts = await service.run(requests_for(0, examples, 4, seed=3), policy_version=0)
    assert len(rollouts) == 24
    for rollout in rollouts:
        assert rollout.failure is None
        assert None not in rollout.rewards.values()
        assert sum(isinstance(event, ModelCall) for event in rollout.events) == 1
        used = [event for event in rollout.events if isinstance(event, ToolCall)]
        assert len(used) == (rollout.output["done"] is not None)
        assert rollout.rewards["correctness"] > -3 or not used or used[0].result != "done"
    assert {rollout.rewards["format"] for rollout in rollouts} == {0.0, 1.0}
    assert len({rollout.rewards["correctness"] for rollout in rollouts}) > 4


async def test_the_best_answer_is_as_probable_as_plain_transformers_says(parts):
    config, live = parts
    examples = (await live.load_examples(config.finetuning.test.dataset, "test"))[:3]
    evaluator = await live.get_evaluator("exact_call")
    policy = await live.get_policy()
    tokenizer = policy.tokenizer
    for example, said in zip(examples, await evaluator.evaluate_policy(examples), strict=True):
        prompt = tokenizer.encode(f"<user> {example.input} <assistant>")
        answer = [*tokenizer.encode(canonical_text(wanted_call(example))), tokenizer.eos_token_id]
        logprobs_T_V = policy.model(torch.tensor([prompt + answer])).logits[0].log_softmax(-1)
        nats = sum(float(logprobs_T_V[len(prompt) - 1 + place, token].detach()) for place, token in enumerate(answer))
        assert said == pytest.approx(torch.tensor(nats).exp().item(), rel=1e-4)


@pytest.mark.parametrize("name", NAMES)
async def test_a_policy_that_failed_said_nothing_and_a_broken_service_is_unknown(parts, name):
    _, live = parts
    evaluator = await live.get_evaluator(name)
    example = Example(id="a", input="call Ada", target='{"name": "call_person", "arguments": {"person": "Ada"}}')

    def failed(cause: Cause) -> Rollout:
        at = {"rollout_id": "r", "seq": 0, "path": (), "start": 0.0, "end": 0.0}
        failure = Failure(**at, stage=Stage.WORKFLOW.value, cause=cause, error_type="X", message="x")
        return Rollout(
            rollout_id="r", example_id="a", generation=0, seed=0, events=(failure,), output=None, rewards={},
            failure=failure, policy_version=0,
        )  # fmt: skip

    assert await evaluator(example, failed(Cause.INFRASTRUCTURE)) is None
    assert await evaluator(example, failed(Cause.POLICY)) == {"correctness": -3.0, "short": 1.0}.get(name, 0.0)


def test_a_target_that_is_no_call_names_its_example():
    with pytest.raises(DataError, match="example 'a': its answer is no call"):
        wanted_call(Example(id="a", input="x", target="call Ada"))
