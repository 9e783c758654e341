"""Evaluators: what a plan comes to in the sandbox, and the rubric for drafts.

Every evaluator scores a rollout. With `exact: true` (the default) an evaluation asks the policy for the probability of every
plan, or of every draft that the tools' findings allow, and takes expectations: no sampling error, no rollouts. What is neither
earns 0. Drafts are then judged on what the best plan finds, so that the writer's marks don't depend on the planner.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, Literal

from nat_finetune_workflows.claims_review import drafts
from nat_finetune_workflows.claims_review.claims import Claim
from nat_finetune_workflows.claims_review.drafts import Mark, parse_draft, writable_drafts
from nat_finetune_workflows.claims_review.functions import ExplainFunction, PlanFunction
from nat_finetune_workflows.claims_review.prompts import parse_plan
from nat_finetune_workflows.claims_review.sandbox import PLANS, Plan, Tool, best_plan, run_plan, score, solved
from nat_finetune_workflows.claims_review.workflow import claim_of

from nat_finetune.config.component import EvaluatorBaseConfig, FunctionRef
from nat_finetune.errors import ConfigError
from nat_finetune.interfaces import Builder, Evaluator
from nat_finetune.registry import register_evaluator
from nat_finetune.types import Example, FunctionCall, Rollout, ScoreRange

MARKS: Mapping[str, Mark] = {
    "rubric": drafts.rubric,
    "correctness": drafts.correctness,
    "citation": drafts.citation,
    "restraint": drafts.restraint,
    "form": drafts.form,
}


class ClaimsPlanScoreConfig(EvaluatorBaseConfig, name="claims_plan_score"):
    """What the plan comes to in the sandbox."""

    planner: FunctionRef
    """The function whose plans are scored."""
    measure: Literal["score", "solved"] = "score"
    """`score`: 1 less 0.3 a needless call, 0 where it leads nowhere. `solved`: whether it leads to the right recommendation."""
    exact: bool = True
    """Evaluate from the planner's distribution; needs a local model."""


class ClaimsDraftScoreConfig(EvaluatorBaseConfig, name="claims_draft_score"):
    """What the rubric says of the draft."""

    writer: FunctionRef
    """The function whose drafts are scored."""
    mark: Literal["rubric", "correctness", "citation", "restraint", "form"] = "rubric"
    """`correctness`: decision and amount are right. `citation`: the clause is. `restraint`: it authorises nothing. `rubric`:
    the mean of the first two, 0 where it authorises. `form`: it is a draft at all."""
    exact: bool = True
    """Evaluate from the writer's distribution, on what the best plan finds; needs a local model."""


def plan_solved(claim: Claim, plan: Plan) -> float:
    """1 where the plan leads to the right recommendation."""
    return float(solved(claim, run_plan(claim, plan)))


class PlanEvaluator:
    """The score of a rollout's plan; 0 for what is none."""

    score_range = ScoreRange(0.0, 1.0)

    def __init__(self, planner: str, measure: Callable[[Claim, Plan], float]) -> None:
        self._planner = planner
        self._measure = measure

    async def __call__(self, example: Example, rollout: Rollout) -> float | None:
        """None where the planner did not answer."""
        answer = _answer(rollout, self._planner)
        if answer is None:
            return None
        plan = parse_plan(answer["text"])
        return 0.0 if plan is None else self._measure(claim_of(example), plan)


class ExactPlanEvaluator(PlanEvaluator):
    """As `PlanEvaluator`, and exactly, over all plans."""

    def __init__(self, planner: str, measure: Callable[[Claim, Plan], float], plan: PlanFunction) -> None:
        super().__init__(planner, measure)
        self._plan = plan

    async def evaluate_policy(self, examples: Sequence[Example]) -> list[float | None]:
        """Expected score of the policy's plan for each claim."""
        claims = [claim_of(example) for example in examples]
        rows = await self._plan.distributions(claims)
        return [sum(p * self._measure(claim, plan) for plan, p in row.items()) for claim, row in zip(claims, rows, strict=True)]

    def references(self, examples: Sequence[Example]) -> Mapping[str, float]:
        """Plans at random, all tools in the right order for every claim, and the best plan for each."""
        claims = [claim_of(example) for example in examples]
        return {
            "uniform": fmean(self._measure(claim, plan) for claim in claims for plan in PLANS),
            "all_tools": fmean(self._measure(claim, tuple(Tool)) for claim in claims),
            "best_plan": fmean(self._measure(claim, best_plan(claim)) for claim in claims),
        }


class DraftEvaluator:
    """The mark of a rollout's draft; 0 for what is none."""

    score_range = ScoreRange(0.0, 1.0)

    def __init__(self, writer: str, mark: Mark) -> None:
        self._writer = writer
        self._mark = mark

    async def __call__(self, example: Example, rollout: Rollout) -> float | None:
        """None where the writer did not answer."""
        answer = _answer(rollout, self._writer)
        if answer is None:
            return None
        draft = parse_draft(answer["text"])
        return 0.0 if draft is None else self._mark(claim_of(example), draft)


class ExactDraftEvaluator(DraftEvaluator):
    """As `DraftEvaluator`, and exactly, over all drafts that can be written from what the best plan finds."""

    def __init__(self, writer: str, mark: Mark, explain: ExplainFunction) -> None:
        super().__init__(writer, mark)
        self._explain = explain

    async def evaluate_policy(self, examples: Sequence[Example]) -> list[float | None]:
        """Expected mark of the policy's draft for each claim."""
        claims = [claim_of(example) for example in examples]
        rows = await self._explain.distributions(claims)
        return [sum(p * self._mark(claim, draft) for draft, p in row.items()) for claim, row in zip(claims, rows, strict=True)]

    def references(self, examples: Sequence[Example]) -> Mapping[str, float]:
        """Drafts at random."""
        claims = [claim_of(example) for example in examples]
        written = [writable_drafts(run_plan(claim, best_plan(claim))) for claim in claims]
        return {"uniform": fmean(fmean(self._mark(c, draft) for draft in ds) for c, ds in zip(claims, written, strict=True))}


def _answer(rollout: Rollout, function: str) -> Any:
    """What a function of the rollout returned, None where it did not."""
    calls = [event for event in rollout.events if isinstance(event, FunctionCall) and event.name == function]
    return calls[-1].output if calls else None


@register_evaluator(config_type=ClaimsPlanScoreConfig)
async def claims_plan_score(config: ClaimsPlanScoreConfig, builder: Builder) -> AsyncIterator[Evaluator]:
    """Make the evaluator."""
    measure = score if config.measure == "score" else plan_solved
    if not config.exact:
        yield PlanEvaluator(config.planner, measure)
        return
    planner = (await builder.get_function(config.planner)).inner  # type: ignore[attr-defined]
    if not isinstance(planner, PlanFunction):
        raise _wrong_function(config.planner, "claims_plan")
    yield ExactPlanEvaluator(config.planner, measure, planner)


@register_evaluator(config_type=ClaimsDraftScoreConfig)
async def claims_draft_score(config: ClaimsDraftScoreConfig, builder: Builder) -> AsyncIterator[Evaluator]:
    """Make the evaluator."""
    if not config.exact:
        yield DraftEvaluator(config.writer, MARKS[config.mark])
        return
    writer = (await builder.get_function(config.writer)).inner  # type: ignore[attr-defined]
    if not isinstance(writer, ExplainFunction):
        raise _wrong_function(config.writer, "claims_explain")
    yield ExactDraftEvaluator(config.writer, MARKS[config.mark], writer)


def _wrong_function(name: str, wanted: str) -> ConfigError:
    return ConfigError(
        f"functions.{name} has no distribution, which exact evaluation needs; name a `_type: {wanted}`, or set `exact: false`"
    )
