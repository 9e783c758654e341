"""What evaluators say, and what that comes to over a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from nat_finetune.types.invariants import require
from nat_finetune.types.policies import PolicyRef


@dataclass(frozen=True, slots=True)
class Score:
    """An evaluator's raw output for one rollout or example."""

    value: float | None
    """None: unknown."""
    reasoning: str | None = None
    """Why, in a sentence; kept in `Rollout.reasons`."""


@dataclass(frozen=True, slots=True)
class ScoreRange:
    """The ends of what an evaluator can score; None where there is none or it is not known."""

    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        ordered = self.low is None or self.high is None or self.low < self.high
        require(ordered, f"the low end of a range must be below the high end: {self.low} to {self.high}")


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95 % interval."""

    mean: float | None
    low: float | None
    high: float | None
    n: int
    """Independent clusters, not rollouts."""


@dataclass(frozen=True, slots=True)
class EvalResult:
    """One policy version on one dataset."""

    split: Literal["train", "validation", "test"]
    policy: PolicyRef | None
    scores: Mapping[str, Mapping[str, float | None]]
    """metric -> `data.keys.example_key(id)` -> the example's mean score, None if unknown."""
    clusters: Mapping[str, str]
    """Example key -> cluster (its task key)."""
    metrics: Mapping[str, Estimate]
    seconds: float
