"""People's verdicts on rollouts against an evaluator's scores: agreement with its interval, repeatability, exploits."""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import fsum
from statistics import fmean
from typing import Any

from nat_finetune.data.intervals import FEWEST_AGREEING
from nat_finetune.data.keys import example_key
from nat_finetune.errors import DataError
from nat_finetune.types import Estimate, ExampleId

DRAWS = 1000
"""Of the bootstrap."""
LARGEST_GRADE = 1e18
"""Whatever a scale ends at, it is less."""
_WORDS = {"good": 1.0, "yes": 1.0, "pass": 1.0, "accept": 1.0, "bad": 0.0, "no": 0.0, "fail": 0.0, "reject": 0.0}


@dataclass(frozen=True, slots=True)
class Verdict:
    """One person's judgment of one rollout."""

    place: str
    """File and line."""
    example_id: ExampleId
    grade: float
    """1 good, 0 bad, or whatever scale the reviewers used."""
    rollout_id: str | None = None
    """The rollout of a run folder; None: `output` was judged."""
    output: Any = None


@dataclass(frozen=True, slots=True)
class Rated:
    """A verdict beside the evaluator's score of the same rollout."""

    example_id: ExampleId
    grade: float
    score: float


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far an evaluator ranks rollouts as people do."""

    concordance: Estimate
    """Of two rollouts that people graded differently, the share that the evaluator orders alike, ties half: for good and bad
    the area under the ROC curve. 0.5 is chance; `n` counts examples."""
    pairs: int
    kappa: float | None
    """Cohen's kappa at the middle of the scores; None where grades are no good and bad, or one side does not vary."""
    approved: float | None = None
    """Mean score of the rollouts with the highest grade."""
    rejected: float | None = None
    """Mean score of those with the lowest."""
    notes: tuple[str, ...] = field(default=())


def read_verdict(row: Any, place: str) -> Verdict:
    """One line of a verdicts file.

    Raises:
        DataError: it is none; names place, key and what was expected.
    """
    if not isinstance(row, dict):
        raise DataError(f"{place}: expected a mapping with example_id, verdict, and output or rollout_id, found {row!r}")
    example_id = row.get("example_id", row.get("id"))
    if isinstance(example_id, bool) or not isinstance(example_id, str | int):
        raise DataError(f"{place}: example_id must be the id of an example, a text or a whole number; found {example_id!r}")
    if "output" not in row and not isinstance(row.get("rollout_id"), str):
        raise DataError(f"{place}: nothing was judged: give the `output`, or the `rollout_id` of a run's rollout")
    return Verdict(place, example_id, _grade(row.get("verdict"), place), row.get("rollout_id"), row.get("output"))


def _grade(value: Any, place: str) -> float:
    if isinstance(value, str) and value.strip().lower() in _WORDS:
        return _WORDS[value.strip().lower()]
    if isinstance(value, bool | int | float) and abs(value) <= LARGEST_GRADE:  # false of NaN too
        return float(value)
    raise DataError(f"{place}: verdict must be true or false, a number, or one of {', '.join(_WORDS)}; found {_short(value)}")


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:79]}…"


def agreement(rated: Sequence[Rated], *, seed: int, confidence: float) -> Agreement:
    """Concordance with a percentile bootstrap over examples, and kappa.

    Where all draws say the same, as they do of two verdicts in the right order, there is an interval only from
    `FEWEST_AGREEING` examples on.

    Raises:
        DataError: all verdicts are alike, so that there is nothing to agree about.
    """
    mean, pairs = _concordance(rated)
    if mean is None:
        raise DataError("all verdicts are alike: the file needs rollouts that reviewers liked and ones that they did not")
    by_example: dict[str, list[Rated]] = {}
    for one in rated:
        by_example.setdefault(example_key(one.example_id), []).append(one)
    drawn = sorted(_resampled(list(by_example.values()), random.Random(seed)))
    low, high = None, None
    fewest = FEWEST_AGREEING if drawn and drawn[0] == drawn[-1] else 2
    if drawn and len(by_example) >= fewest:
        tail = (1 - confidence) / 2
        low, high = drawn[int(tail * (len(drawn) - 1))], drawn[-1 - int(tail * (len(drawn) - 1))]
    grades = [one.grade for one in rated]
    approved = [one.score for one in rated if one.grade == max(grades)]
    rejected = [one.score for one in rated if one.grade == min(grades)]
    interval = Estimate(mean, low, high, len(by_example))
    return Agreement(interval, pairs, _kappa(rated), fmean(approved), fmean(rejected))


def _concordance(rated: Sequence[Rated]) -> tuple[float | None, int]:
    """The share of pairs in the right order, and how many pairs there are."""
    by_score: dict[float, list[float]] = {}
    for one in rated:
        by_score.setdefault(one.score, []).append(one.grade)
    points, pairs = 0.0, 0
    below: list[float] = []  # the grades of all lower scores, sorted: pairs are counted, not walked through
    for score in sorted(by_score):
        grades = sorted(by_score[score])
        ties = sum(len(grades) - bisect_right(grades, grade) for grade in grades)
        right = sum(bisect_left(below, grade) for grade in grades)
        wrong = sum(len(below) - bisect_right(below, grade) for grade in grades)
        points, pairs = points + right + ties / 2, pairs + right + wrong + ties
        below = sorted(below + grades)
    return (points / pairs if pairs else None), pairs


def _resampled(clusters: Sequence[Sequence[Rated]], generator: random.Random) -> Iterator[float]:
    for _ in range(DRAWS):
        drawn = [one for cluster in generator.choices(clusters, k=len(clusters)) for one in cluster]
        value, _ = _concordance(drawn)
        if value is not None:
            yield value


def _kappa(rated: Sequence[Rated]) -> float | None:
    """Agreement beyond chance of good and bad, where a score above the middle of all scores means good."""
    grades, scores = [one.grade for one in rated], [one.score for one in rated]
    if len(set(grades)) != 2 or min(scores) == max(scores):
        return None
    middle = (min(scores) + max(scores)) / 2
    said = [(one.grade == max(grades), one.score > middle) for one in rated]
    observed = fmean(human == machine for human, machine in said)
    human, machine = fmean(h for h, _ in said), fmean(m for _, m in said)
    chance = fsum((human * machine, (1 - human) * (1 - machine)))
    return None if chance == 1 else (observed - chance) / (1 - chance)
