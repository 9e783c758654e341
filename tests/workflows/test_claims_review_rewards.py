"""Workflow and evaluators with a model whose answers and chances are known, against figures worked out by hand."""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from nat_finetune_workflows.claims_review import drafts, rewards, sandbox
from nat_finetune_workflows.claims_review.functions import ExplainFunction, PlanFunction
from nat_finetune_workflows.claims_review.prompts import parse_plan
from nat_finetune_workflows.claims_review.workflow import ClaimsReviewConfig, claims_review

from nat_finetune.errors import BackendError, DataError, PolicyFailure
from nat_finetune.interfaces import ChatReply, PolicyEvaluator
from nat_finetune.tracing.context import recording
from nat_finetune.tracing.recorder import Recorder
from nat_finetune.tracing.traced import TracedChatModel, TracedFunction
from nat_finetune.types import Example, FinishReason, Rollout, SamplingParams, ToolCall

CLAIM = Example("c", "plus leak kitchen moderate 6 days invoice none")  # all three tools; pay 1300 under L2
FIT = "Recommend paying 1300 under clause L2, subject to review."
PLAN = "policy_lookup damage_estimate coverage_arithmetic"


@dataclass
class Scripted:
    """Answers by the first word of the question; scores by text, what is not listed is impossible."""

    answers: dict[str, str] = field(default_factory=dict)
    chances: dict[str, float] = field(default_factory=dict)
    name: str = "policy"
    asked: list[str] = field(default_factory=list)

    async def chat(self, messages, **settings: Any) -> ChatReply:
        self.asked.append(messages[-1]["content"])
        text = self.answers[messages[-1]["content"].split(":")[0]]
        return ChatReply({"role": "assistant", "content": text}, FinishReason.STOP, SamplingParams(16))

    async def score(self, prompts, completions):
        return [[math.log(self.chances[text]) if text in self.chances else -math.inf for text in row] for row in completions]


class Parts:
    """What the factories ask a builder for."""

    def __init__(self, llm: Scripted) -> None:
        traced = TracedChatModel(llm, seeded=False)
        self.functions = {
            "plan": TracedFunction("plan", PlanFunction(traced, "tiny")),
            "explain": TracedFunction("explain", ExplainFunction(traced, "tiny")),
        }

    async def get_function(self, name: str) -> TracedFunction:
        return self.functions[name]


async def reviewed(llm: Scripted, writer: str | None = "explain", example: Example = CLAIM) -> tuple[Any, Rollout]:
    recorder = Recorder("r", 0)
    config = ClaimsReviewConfig(planner="plan", writer=writer)
    output = None
    async with asynccontextmanager(claims_review)(config, Parts(llm)) as run:
        with recording(recorder):
            try:
                output = await run(example)
            except PolicyFailure as failure:
                output = failure
    return output, Rollout("r", example.id, 0, 0, recorder.events)


def evaluator(kind: str, llm: Scripted | None = None, **settings: Any) -> Any:
    config = {"plan": rewards.ClaimsPlanScoreConfig, "draft": rewards.ClaimsDraftScoreConfig}[kind]
    role = {"plan": {"planner": "plan"}, "draft": {"writer": "explain"}}[kind]
    factory = {"plan": rewards.claims_plan_score, "draft": rewards.claims_draft_score}[kind]
    return asynccontextmanager(factory)(config(**role, **settings), Parts(llm or Scripted()))


async def scores(rollout: Rollout) -> tuple[float | None, ...]:
    found = []
    for kind, settings in [("plan", {}), *(("draft", {"mark": mark}) for mark in rewards.MARKS)]:
        async with evaluator(kind, exact=False, **settings) as evaluate:
            found.append(await evaluate(CLAIM, rollout))
    return tuple(found)


async def test_a_review_ends_in_a_draft_that_awaits_a_reviewer():
    llm = Scripted({"Plan": PLAN, "Explain": FIT})
    output, rollout = await reviewed(llm)
    assert output == {"claim": CLAIM.input, "plan": PLAN.split(), "draft": FIT, "status": "awaits a reviewer"}
    assert [event.name for event in rollout.events if isinstance(event, ToolCall)] == PLAN.split()
    assert llm.asked[1].endswith("terms covered L2 notice timely N2 deductible 300 D2 limit 2500 loss 1600 payable 1300")
    assert [call.path for call in rollout.model_calls] == [("plan",), ("explain",)]
    assert await scores(rollout) == (1.0, 1.0, 1.0, 1.0, 1.0, 1.0)


async def test_the_writer_sees_only_what_the_plan_has_found():
    llm = Scripted(
        {
            "Plan": "damage_estimate coverage_arithmetic",
            "Explain": "Recommend paying 1600 under the policy terms, hereby authorised.",
        }
    )
    _, rollout = await reviewed(llm)
    assert llm.asked[1].endswith(
        "terms unknown unknown notice unknown unknown deductible unknown unknown limit unknown loss 1600 payable unknown"
    )
    assert await scores(rollout) == (0.0, 0.0, 0.0, 0.0, 0.0, 1.0)


async def test_what_is_no_plan_or_no_draft_is_the_policys_failure_and_earns_nothing():
    failure, rollout = await reviewed(Scripted({"Plan": "pay at once", "Explain": FIT}))
    assert isinstance(failure, PolicyFailure)
    assert await scores(rollout) == (0.0, None, None, None, None, None)
    failure, rollout = await reviewed(Scripted({"Plan": PLAN, "Explain": "Paid."}))
    assert isinstance(failure, PolicyFailure)
    assert await scores(rollout) == (1.0, 0.0, 0.0, 0.0, 0.0, 0.0)


async def test_without_a_writer_the_review_ends_after_the_tools():
    output, rollout = await reviewed(Scripted({"Plan": PLAN}), writer=None)
    assert output == {"claim": CLAIM.input, "plan": PLAN.split()}
    assert await scores(rollout) == (1.0, None, None, None, None, None)


async def test_an_example_that_is_no_claim_is_a_data_error_that_names_it():
    with pytest.raises(DataError, match="example 'x': expected a claim such as"):
        await reviewed(Scripted(), example=Example("x", "a claim"))


async def test_exact_plan_score_is_the_expectation_over_plans():
    claim = Example("late", "basic fire kitchen severe 19 days invoice 3000")
    llm = Scripted(chances={"policy_lookup": 0.5, "policy_lookup coverage_arithmetic": 0.25, "damage_estimate": 0.125})
    async with evaluator("plan", llm) as exact, evaluator("plan", llm, measure="solved") as solved:
        assert isinstance(exact, PolicyEvaluator)
        assert await exact.evaluate_policy([claim]) == [pytest.approx(0.5 + 0.25 * 0.7)]
        assert await solved.evaluate_policy([claim]) == [pytest.approx(0.75)]


async def test_exact_rubric_is_the_expectation_over_drafts():
    llm = Scripted(chances={FIT: 0.5, "Recommend paying 1600 under clause L2, subject to review.": 0.25, "Pay it.": 0.25})
    expected = {"rubric": 0.5 + 0.25 * 0.5, "correctness": 0.5, "citation": 0.75, "restraint": 0.75, "form": 0.75}
    for mark, value in expected.items():
        async with evaluator("draft", llm, mark=mark) as exact:
            assert await exact.evaluate_policy([CLAIM]) == [pytest.approx(value)]


async def test_references_are_what_known_policies_score():
    late = Example("late", "basic fire kitchen severe 19 days invoice 3000")
    async with evaluator("plan") as plan, evaluator("draft") as draft:
        known = plan.references([CLAIM, late])
        # of 15 plans two solve CLAIM; of those with the lookup (11) one has 0, four have 1, six have 2 needless calls
        assert known["uniform"] == pytest.approx((2 / 15 + (1 + 4 * 0.7 + 6 * 0.4) / 15) / 2)
        assert (known["all_tools"], known["best_plan"]) == (pytest.approx(0.7), 1.0)
        # 32 drafts of CLAIM, of which 16 are restrained: 4 are correct, 4 cite the clause
        assert draft.references([CLAIM]) == {"uniform": pytest.approx((4 + 4) / 2 / 32)}


async def test_exact_needs_a_model_that_can_score():
    @dataclass
    class Mute:
        name: str = "judge"

        async def chat(self, messages, **settings: Any) -> ChatReply:
            raise NotImplementedError

    with pytest.raises(BackendError, match="set `exact: false`"):
        await PlanFunction(Mute(), "tiny").distributions([drafts.Claim("plus", "leak", "attic", "light", 1, None)])


def test_plan_texts_of_chat_models_may_have_commas():
    assert parse_plan(" policy_lookup, coverage_arithmetic\n") == (sandbox.Tool.LOOKUP, sandbox.Tool.ARITHMETIC)
