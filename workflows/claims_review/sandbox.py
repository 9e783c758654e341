"""The tools, and what a plan of them comes to: run in a sandbox, scored by rule.

No tool pays, books or writes to anything outside: the most that a review can produce is a draft for a reviewer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import permutations

from nat_finetune_workflows.claims_review.claims import Claim, Terms, estimated_damage, payable, terms

from nat_finetune import tracing

WASTE = 0.3
"""What a call costs that the review could have done without."""


class Tool(StrEnum):
    """What a plan is made of."""

    LOOKUP = "policy_lookup"
    """The policy's terms for the claim."""
    ESTIMATE = "damage_estimate"
    """What the damage costs; idle where an invoice says so."""
    ARITHMETIC = "coverage_arithmetic"
    """What is payable: needs the terms and a loss, so it must come after the tools that find them."""


Plan = tuple[Tool, ...]

PLANS: tuple[Plan, ...] = tuple(plan for length in (1, 2, 3) for plan in permutations(Tool, length))
"""Every plan: one to three tools, none twice."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What the tools have found so far; None: not looked for."""

    terms: Terms | None = None
    loss: int | None = None
    payable: int | None = None


class ToolError(Exception):
    """A tool was called without what it needs."""


def use(tool: Tool, claim: Claim, known: Findings) -> Findings:
    """Call one tool.

    Raises:
        ToolError: it needs what no earlier call has found.
    """
    match tool:
        case Tool.LOOKUP:
            return replace(known, terms=terms(claim))
        case Tool.ESTIMATE:
            return replace(known, loss=estimated_damage(claim) if claim.invoice is None else claim.invoice)
        case Tool.ARITHMETIC:
            if known.terms is None or known.loss is None:
                missing = "terms" if known.terms is None else "loss"
                raise ToolError(f"coverage_arithmetic needs the {missing}, which no earlier call of the plan has found")
            return replace(known, payable=payable(known.terms, known.loss))


def use_traced(tool: Tool, claim: Claim, known: Findings) -> Findings:
    """As `use`, and an event of the rollout."""
    with tracing.tool(tool.value, {"claim": str(claim)}) as call:
        call.result = found = use(tool, claim, known)
    return found


def run_plan(claim: Claim, plan: Plan, call: Callable[[Tool, Claim, Findings], Findings] = use) -> Findings:
    """Call the plan's tools in order; a call that fails finds nothing, and the review goes on."""
    known = Findings(loss=claim.invoice)
    for tool in plan:
        try:
            known = call(tool, claim, known)
        except ToolError:
            continue
    return known


def needed(claim: Claim) -> frozenset[Tool]:
    """The tools that the right recommendation rests on: an excluded or late claim needs the terms alone."""
    found = terms(claim)
    if not (found.covered and found.in_time):
        return frozenset([Tool.LOOKUP])
    return frozenset(Tool) - (frozenset() if claim.invoice is None else {Tool.ESTIMATE})


def solved(claim: Claim, found: Findings) -> bool:
    """Whether the right recommendation can be drawn from what was found."""
    if found.terms is None:
        return False
    return found.payable is not None or not (found.terms.covered and found.terms.in_time)


def score(claim: Claim, plan: Plan) -> float:
    """1 less `WASTE` for each needless call where the plan leads to the right recommendation, else 0."""
    if not solved(claim, run_plan(claim, plan)):
        return 0.0
    return max(0.0, 1.0 - WASTE * len(set(plan) - needed(claim)))


def best_plan(claim: Claim) -> Plan:
    """The plan that scores 1, in the order in which the tools are listed."""
    return tuple(tool for tool in Tool if tool in needed(claim))
