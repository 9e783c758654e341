"""The two functions that a model fills: `claims_plan` chooses the tools, `claims_explain` writes the draft."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from nat_finetune_workflows.claims_review.claims import Claim
from nat_finetune_workflows.claims_review.drafts import Draft, parse_draft, writable_drafts
from nat_finetune_workflows.claims_review.prompts import (
    Messages,
    Style,
    explain_messages,
    parse_plan,
    plan_messages,
    plan_text,
)
from nat_finetune_workflows.claims_review.sandbox import PLANS, Findings, Plan, best_plan, run_plan

from nat_finetune.config.component import FunctionBaseConfig, LLMRef
from nat_finetune.errors import BackendError
from nat_finetune.interfaces import Builder, ChatModel, ScoringChatModel
from nat_finetune.registry import register_function


class ClaimsPlanConfig(FunctionBaseConfig, name="claims_plan"):
    """One model call that names the tools to call, in order."""

    llm: LLMRef
    style: Style = "chat"
    """`tiny`: one bare line, for `builtin:claims-review`. `chat`: instruction and examples, for a chat model."""


class ClaimsExplainConfig(FunctionBaseConfig, name="claims_explain"):
    """One model call that drafts the recommendation from the claim and what the tools found."""

    llm: LLMRef
    style: Style = "chat"
    """As `claims_plan`."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What the planner answered."""

    text: str
    plan: Plan | None
    """None: the text is no plan."""


@dataclass(frozen=True, slots=True)
class Written:
    """What the writer answered."""

    text: str
    draft: Draft | None
    """None: the text is not in the form of a draft."""


class PlanFunction:
    """Asks a model; and says how likely it makes each plan."""

    def __init__(self, llm: ChatModel, style: Style) -> None:
        self._llm = llm
        self._style: Style = style

    async def __call__(self, claim: Claim) -> Planned:
        """One answer."""
        reply = await self._llm.chat(plan_messages(claim, self._style))
        return Planned(reply.text, parse_plan(reply.text))

    async def distributions(self, claims: Sequence[Claim]) -> list[dict[Plan, float]]:
        """Probability of each plan for each claim; what they lack to 1 is no plan.

        Raises:
            BackendError: the model can't score given answers.
        """
        prompts = [plan_messages(claim, self._style) for claim in claims]
        texts = [plan_text(plan) for plan in PLANS]
        rows = await _probabilities(self._llm, prompts, [texts] * len(claims))
        return [dict(zip(PLANS, row, strict=True)) for row in rows]


class ExplainFunction:
    """Asks a model; and says how likely it makes each draft."""

    def __init__(self, llm: ChatModel, style: Style) -> None:
        self._llm = llm
        self._style: Style = style

    async def __call__(self, claim: Claim, found: Findings) -> Written:
        """One answer."""
        reply = await self._llm.chat(explain_messages(claim, found, self._style))
        return Written(reply.text, parse_draft(reply.text))

    async def distributions(self, claims: Sequence[Claim]) -> list[dict[Draft, float]]:
        """Probability of each draft for each claim, given what its best plan finds; what they lack to 1 is another text.

        Raises:
            BackendError: the model can't score given answers.
        """
        found = [run_plan(claim, best_plan(claim)) for claim in claims]
        drafts = [writable_drafts(each) for each in found]
        prompts = [explain_messages(claim, each, self._style) for claim, each in zip(claims, found, strict=True)]
        rows = await _probabilities(self._llm, prompts, [[str(draft) for draft in group] for group in drafts])
        return [dict(zip(group, row, strict=True)) for group, row in zip(drafts, rows, strict=True)]


async def _probabilities(llm: ChatModel, prompts: Sequence[Messages], texts: Sequence[Sequence[str]]) -> list[list[float]]:
    if not isinstance(llm, ScoringChatModel):
        raise BackendError(f"llms.{llm.name} can't score answers; set `exact: false` on the evaluator")
    return [[math.exp(nats) for nats in row] for row in await llm.score(prompts, texts)]


@register_function(config_type=ClaimsPlanConfig)
async def claims_plan(config: ClaimsPlanConfig, builder: Builder) -> AsyncIterator[PlanFunction]:
    """Make the function."""
    yield PlanFunction(await builder.get_llm(config.llm), config.style)


@register_function(config_type=ClaimsExplainConfig)
async def claims_explain(config: ClaimsExplainConfig, builder: Builder) -> AsyncIterator[ExplainFunction]:
    """Make the function."""
    yield ExplainFunction(await builder.get_llm(config.llm), config.style)
