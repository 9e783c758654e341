"""The workflow `claims_review`: plan the tools, call them in the sandbox, draft a recommendation for a reviewer.

An example's input is a claim in one line (see `claims.py`). The output is a draft and nothing else: there is no tool that pays,
and a draft that claims to authorise something is an unfit draft, not an authorisation.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from nat_finetune_workflows.claims_review.claims import Claim, parse_claim
from nat_finetune_workflows.claims_review.sandbox import run_plan, use_traced

from nat_finetune.config.component import FunctionBaseConfig, FunctionRef
from nat_finetune.errors import DataError, PolicyFailure
from nat_finetune.interfaces import Builder
from nat_finetune.registry import register_function
from nat_finetune.types import Example


class ClaimsReviewConfig(FunctionBaseConfig, name="claims_review"):
    """Plans the review of a claim, calls the tools, drafts a recommendation; a reviewer decides."""

    planner: FunctionRef
    """The function that chooses the tools."""
    writer: FunctionRef | None = None
    """The function that drafts the recommendation; null: the review ends after the tools."""


def claim_of(example: Example) -> Claim:
    """The claim of an example.

    Raises:
        DataError: its input is none.
    """
    try:
        return parse_claim(str(example.input))
    except ValueError as error:
        raise DataError(f"example {example.id!r}: {error}") from None


@register_function(config_type=ClaimsReviewConfig)
async def claims_review(config: ClaimsReviewConfig, builder: Builder) -> AsyncIterator[Callable[[Example], Awaitable[Any]]]:
    """Make the workflow."""
    planner = await builder.get_function(config.planner)
    writer = None if config.writer is None else await builder.get_function(config.writer)

    async def run(example: Example) -> dict[str, Any]:
        claim = claim_of(example)
        planned = await planner(claim)
        if planned.plan is None:
            raise PolicyFailure(f"{planned.text!r} is no plan for {claim}: expected names of tools, none twice")
        found = run_plan(claim, planned.plan, use_traced)
        result: dict[str, Any] = {"claim": str(claim), "plan": [tool.value for tool in planned.plan]}
        if writer is None:
            return result
        written = await writer(claim, found)
        if written.draft is None:
            raise PolicyFailure(f"{written.text!r} is no draft: expected a recommendation in the form that the prompt shows")
        return {**result, "draft": str(written.draft), "status": "awaits a reviewer"}

    yield run
