"""Claims, the insurer's terms, and the one right recommendation for each claim.

A claim is one line, `plus flood kitchen severe 12 days invoice none`: product, peril, place and severity of the damage, days
until it was reported, and the invoice's amount where one is in the file. Amounts are whole hundreds of one currency.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

PRODUCTS = ("basic", "plus", "premier")
PERILS = ("fire", "storm", "theft", "leak", "frost", "flood")
PLACES = {"shed": 200, "bedroom": 300, "cellar": 400, "garage": 500, "attic": 600, "kitchen": 800}
"""Where the damage is, and what a light one costs there."""
SEVERITIES = {"light": 1, "moderate": 2, "severe": 4}
"""How bad it is, as a factor on the cost of a light one."""
DAYS = (1, 3, 6, 9, 13, 19, 24, 29, 38, 47, 58, 75)
"""Days between damage and report."""
LARGEST = 4000
"""Amounts go from 100 to this one in steps of 100."""

_COVERED = {"basic": 3, "plus": 5, "premier": 6}  # so many of PERILS, from the first on
_NOTICE_DAYS = {"basic": 14, "plus": 30, "premier": 60}
_DEDUCTIBLES = {"basic": 500, "plus": 300, "premier": 100}
_LIMITS = {"basic": 1500, "plus": 2500, "premier": 4000}


@dataclass(frozen=True, slots=True)
class Terms:
    """What a policy says of one claim."""

    covered: bool
    clause: str
    """The clause on this peril: it covers it or excludes it."""
    in_time: bool
    notice_clause: str
    deductible: int
    deductible_clause: str
    limit: int


@dataclass(frozen=True, slots=True)
class Claim:
    """The facts in the file."""

    product: str
    peril: str
    place: str
    severity: str
    days: int
    invoice: int | None
    """None: no invoice is in the file, the damage has to be estimated."""

    def __str__(self) -> str:
        invoice = "none" if self.invoice is None else self.invoice
        return f"{self.product} {self.peril} {self.place} {self.severity} {self.days} days invoice {invoice}"


class Decision(StrEnum):
    """What a draft can recommend."""

    PAY = "pay"
    DECLINE = "decline"
    REFER = "refer"


@dataclass(frozen=True, slots=True)
class Answer:
    """The right recommendation."""

    decision: Decision
    clause: str
    """The clause that it rests on."""
    amount: int | None = None
    """For `PAY` alone."""


def parse_claim(text: str) -> Claim:
    """The claim that a line describes.

    Raises:
        ValueError: it describes none; says what was expected.
    """
    words = text.split()
    if len(words) != 8 or words[5] != "days" or words[6] != "invoice" or not words[4].isdecimal():
        raise ValueError(f"expected a claim such as 'plus flood kitchen severe 12 days invoice none', found {text!r}")
    for word, known in zip(words, (PRODUCTS, PERILS, PLACES, SEVERITIES), strict=False):
        if word not in known:
            raise ValueError(f"expected one of {', '.join(known)}, found {word!r} in {text!r}")
    if words[7] != "none" and not (words[7].isdecimal() and int(words[7]) in range(100, LARGEST + 1, 100)):
        raise ValueError(f"expected an invoice of 100 to {LARGEST} in hundreds, or none, found {words[7]!r} in {text!r}")
    product, peril, place, severity = words[:4]
    return Claim(product, peril, place, severity, int(words[4]), None if words[7] == "none" else int(words[7]))


def terms(claim: Claim) -> Terms:
    """The product's terms for this claim."""
    number = PRODUCTS.index(claim.product) + 1
    return Terms(
        covered=claim.peril in PERILS[: _COVERED[claim.product]],
        clause=f"{'FSTLCW'[PERILS.index(claim.peril)]}{number}",
        in_time=claim.days <= _NOTICE_DAYS[claim.product],
        notice_clause=f"N{number}",
        deductible=_DEDUCTIBLES[claim.product],
        deductible_clause=f"D{number}",
        limit=_LIMITS[claim.product],
    )


def estimated_damage(claim: Claim) -> int:
    """What the damage costs by the table of places and severities."""
    return PLACES[claim.place] * SEVERITIES[claim.severity]


def payable(terms: Terms, loss: int) -> int:
    """The loss up to the limit, less the deductible; 0 where nothing is owed."""
    if not (terms.covered and terms.in_time):
        return 0
    return max(0, min(loss, terms.limit) - terms.deductible)


def right_answer(claim: Claim) -> Answer:
    """The recommendation that a careful reviewer would sign: exclusion first, then late notice, then the arithmetic."""
    found = terms(claim)
    if not found.covered:
        return Answer(Decision.DECLINE, found.clause)
    if not found.in_time:
        return Answer(Decision.REFER, found.notice_clause)
    amount = payable(found, estimated_damage(claim) if claim.invoice is None else claim.invoice)
    if amount == 0:
        return Answer(Decision.DECLINE, found.deductible_clause)
    return Answer(Decision.PAY, found.clause, amount)
