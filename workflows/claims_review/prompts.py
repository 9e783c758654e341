"""What planner and writer are asked, and what a plan's text means.

`tiny` is one line for the shipped policy; `chat` is the same line after an instruction and examples, for language models.
"""

from __future__ import annotations

from typing import Literal

from nat_finetune_workflows.claims_review.claims import Claim, parse_claim
from nat_finetune_workflows.claims_review.drafts import fit_draft
from nat_finetune_workflows.claims_review.sandbox import Findings, Plan, Tool, best_plan, run_plan

Style = Literal["tiny", "chat"]
Messages = list[dict[str, str]]

EXAMPLES: tuple[str, ...] = (
    "plus leak attic severe 9 days invoice 4000",
    "basic leak bedroom light 3 days invoice 300",
    "plus fire cellar severe 47 days invoice 1200",
    "premier storm kitchen light 3 days invoice none",
    "basic fire bedroom moderate 9 days invoice 400",
)
"""Training claims that language models are shown first, with the right plan and draft."""
_PLANNER = (
    "You plan the review of an insurance claim. The tools: policy_lookup (the terms), damage_estimate (the loss, where no "
    "invoice says it), coverage_arithmetic (the payable amount, from terms and loss). Answer with the names of the tools that "
    "are needed, in the order in which to call them, and nothing else. Needless calls cost money: a claim that is excluded or "
    "reported too late needs the terms alone."
)
_WRITER = (
    "You draft a recommendation on an insurance claim, for a reviewer who decides. Excluded: decline, citing the clause after "
    "`terms`. Late: refer, citing the clause after `late`. Nothing payable: decline, citing the clause of the deductible. "
    "Else: pay the payable amount, citing the clause after `terms`. Never authorise anything. Answer with one sentence in the "
    "form of the examples."
)


def plan_prompt(claim: Claim) -> str:
    """The claim, as the planner is shown it."""
    return f"Plan: {claim}"


def explain_prompt(claim: Claim, found: Findings) -> str:
    """The claim and what the tools found, as the writer is shown it; each fact has its place, known or not."""
    terms = found.terms
    unknown = "unknown"
    facts: list[object] = ["terms", unknown, unknown, "notice", unknown, unknown, "deductible", unknown, unknown]
    facts += ["limit", unknown]
    if terms is not None:
        facts[1:3] = ["covered" if terms.covered else "excluded", terms.clause]
        facts[4:6] = ["timely" if terms.in_time else "late", terms.notice_clause]
        facts[7:9] = [terms.deductible, terms.deductible_clause]
        facts[10] = terms.limit
    facts += ["loss", unknown if found.loss is None else found.loss]
    facts += ["payable", unknown if found.payable is None else found.payable]
    return f"Explain: {claim} {' '.join(map(str, facts))}"


def plan_messages(claim: Claim, style: Style) -> Messages:
    """The conversation that asks for a plan."""
    shown = [(plan_prompt(example), plan_text(best_plan(example))) for example in map(parse_claim, EXAMPLES)]
    return _conversation(_PLANNER, shown, plan_prompt(claim), style)


def explain_messages(claim: Claim, found: Findings, style: Style) -> Messages:
    """The conversation that asks for a draft."""
    claims = [parse_claim(example) for example in EXAMPLES]
    shown = [(explain_prompt(each, run_plan(each, best_plan(each))), str(fit_draft(each))) for each in claims]
    return _conversation(_WRITER, shown, explain_prompt(claim, found), style)


def plan_text(plan: Plan) -> str:
    """How a plan is written."""
    return " ".join(plan)


def parse_plan(text: str) -> Plan | None:
    """The plan that a text names: tools with white space or commas between them, none twice; None where it is none."""
    names = text.replace(",", " ").split()
    if not names or len(set(names)) < len(names) or not set(names) <= set(Tool):
        return None
    return tuple(map(Tool, names))


def _conversation(rules: str, shown: list[tuple[str, str]], asked: str, style: Style) -> Messages:
    if style == "tiny":
        return [{"role": "user", "content": asked}]
    turns: Messages = [{"role": "system", "content": rules}]
    for question, answer in shown:
        turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return [*turns, {"role": "user", "content": asked}]
