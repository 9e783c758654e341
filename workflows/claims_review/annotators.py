"""The annotator model behind the reviewer records: who prefers which of two drafts, with knobs for disagreement and bias.

A reviewer sees two drafts of one claim and likes each by

    utility = 2.0 correctness + 1.5 citation + 2.0 restraint        the truth, by the rubric's rules
              + leniency  [recommends paying]                       a bias of this reviewer
              + brevity   [cites no clause: the shorter draft]      another

and prefers the first with probability slip/2 + (1 - slip) · sigmoid((utility_1 - utility_2) / disagreement)
(Bradley and Terry 1952, with a share of records that are answered blindly).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from nat_finetune_workflows.claims_review.claims import Claim, Decision
from nat_finetune_workflows.claims_review.drafts import Draft, citation, correctness, restraint

_WORTH = {correctness: 2.0, citation: 1.5, restraint: 2.0}


@dataclass(frozen=True, slots=True)
class Reviewer:
    """One person, with their biases in units of utility."""

    name: str
    leniency: float = 0.0
    """Above 0: likes to see claims paid. Below: to see them declined."""
    brevity: float = 0.0
    """Above 0: likes drafts without a clause."""


@dataclass(frozen=True, slots=True)
class AnnotatorModel:
    """A team of reviewers and how much they disagree."""

    reviewers: tuple[Reviewer, ...] = (
        Reviewer("r1"),
        Reviewer("r2", leniency=1.0),
        Reviewer("r3", leniency=-0.7),
        Reviewer("r4", brevity=0.8),
        Reviewer("r5", leniency=0.5, brevity=0.5),
    )
    disagreement: float = 0.7
    """Spread of the judgments; towards 0 everybody follows their utility, at infinity they toss a coin."""
    slip: float = 0.06
    """Share of records that are answered blindly."""

    def __post_init__(self) -> None:
        if not (self.reviewers and self.disagreement > 0 and 0 <= self.slip <= 1):
            raise ValueError(f"expected reviewers, a disagreement above 0 and a slip of 0 to 1, found {self}")

    def prefers(self, reviewer: Reviewer, claim: Claim, first: Draft, second: Draft) -> float:
        """Probability that the reviewer prefers the first draft."""
        gap = (utility(reviewer, claim, first) - utility(reviewer, claim, second)) / self.disagreement
        return self.slip / 2 + (1 - self.slip) / (1 + math.exp(-gap))

    def judge(self, claim: Claim, first: Draft, second: Draft, generator: Random) -> tuple[Reviewer, Draft, Draft]:
        """A reviewer drawn at random, the draft that they chose, and the one that they rejected."""
        reviewer = generator.choice(self.reviewers)
        chosen = generator.random() < self.prefers(reviewer, claim, first, second)
        return (reviewer, first, second) if chosen else (reviewer, second, first)


def true_worth(claim: Claim, draft: Draft) -> float:
    """What an unbiased reviewer would see in the draft."""
    return sum(weight * mark(claim, draft) for mark, weight in _WORTH.items())


def utility(reviewer: Reviewer, claim: Claim, draft: Draft) -> float:
    """What this reviewer sees in it."""
    paying, bare = draft.decision is Decision.PAY, draft.clause is None
    return true_worth(claim, draft) + reviewer.leniency * paying + reviewer.brevity * bare
