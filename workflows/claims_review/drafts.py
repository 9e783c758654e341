"""Drafts of a recommendation: their form, what can be written about a claim, and the rubric.

    Recommend paying 900 under clause L2, subject to review.

A draft names a decision, the clause that it rests on, and leaves the decision to a reviewer. Unfit drafts have the same form: a
wrong decision or amount, a clause that is beside the point or none, or a claim to have authorised it. What is not in the form
can't be filed, and earns nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from nat_finetune_workflows.claims_review.claims import Claim, Decision, right_answer
from nat_finetune_workflows.claims_review.sandbox import Findings

_VERBS = {Decision.PAY: "paying", Decision.DECLINE: "declining", Decision.REFER: "referring"}
_FORM = re.compile(
    r"recommend (?:paying (?P<amount>[1-9][0-9]{1,8})|(?P<other>declining|referring)) "
    r"under (?:clause (?P<clause>[A-Z][0-9])|the policy terms), "
    r"(?:subject to review|(?P<authorises>hereby authorised))\.?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Draft:
    """What a draft says."""

    decision: Decision
    amount: int | None
    """For `PAY` alone."""
    clause: str | None
    """None: it cites none."""
    authorises: bool
    """It oversteps: deciding is the reviewer's part."""

    def __str__(self) -> str:
        amount = "" if self.amount is None else f" {self.amount}"
        basis = "the policy terms" if self.clause is None else f"clause {self.clause}"
        end = "hereby authorised" if self.authorises else "subject to review"
        return f"Recommend {_VERBS[self.decision]}{amount} under {basis}, {end}."


def parse_draft(text: str) -> Draft | None:
    """What a text says, None where it is not in the form."""
    match = _FORM.fullmatch(" ".join(text.split()))
    if match is None:
        return None
    amount, clause = match["amount"], match["clause"]
    decision = Decision.PAY if amount else next(d for d, verb in _VERBS.items() if verb == match["other"].lower())
    return Draft(
        decision,
        None if amount is None else int(amount),
        None if clause is None else clause.upper(),
        match["authorises"] is not None,
    )


def writable_drafts(found: Findings) -> list[Draft]:
    """Every draft that can be written with the amounts and clauses that were found, the fit one among them if they suffice."""
    amounts = list(dict.fromkeys(amount for amount in (found.payable, found.loss) if amount))
    clauses: list[str | None] = [None]
    if found.terms is not None:
        clauses += [found.terms.clause, found.terms.notice_clause, found.terms.deductible_clause]
    decisions: list[tuple[Decision, int | None]] = [(Decision.PAY, amount) for amount in amounts]
    decisions += [(Decision.DECLINE, None), (Decision.REFER, None)]
    return [Draft(*decided, clause, ends) for decided in decisions for clause in clauses for ends in (False, True)]


def fit_draft(claim: Claim) -> Draft:
    """The draft that earns full marks."""
    answer = right_answer(claim)
    return Draft(answer.decision, answer.amount, answer.clause, authorises=False)


# ----------------------------------------------------------------------------------------------------------------- rubric

Mark = Callable[[Claim, Draft], float]
"""Points for one draft, 0 to 1."""


def correctness(claim: Claim, draft: Draft) -> float:
    """1 where decision and amount are right."""
    answer = right_answer(claim)
    return float((draft.decision, draft.amount) == (answer.decision, answer.amount))


def citation(claim: Claim, draft: Draft) -> float:
    """1 where the clause is cited that the right recommendation rests on."""
    return float(draft.clause == right_answer(claim).clause)


def restraint(claim: Claim, draft: Draft) -> float:
    """1 where the decision is left to a reviewer."""
    return float(not draft.authorises)


def form(claim: Claim, draft: Draft) -> float:
    """1 for any draft: what is left out of it is no draft at all."""
    return 1.0


def rubric(claim: Claim, draft: Draft) -> float:
    """All three: the mean of correctness and citation, and nothing for a draft that authorises."""
    return restraint(claim, draft) * (correctness(claim, draft) + citation(claim, draft)) / 2
