"""Agreement of scores with verdicts."""

import random
import time
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu

from nat_finetune.data.verdicts import Rated, agreement, read_verdict
from nat_finetune.errors import DataError


def rated(grades, scores, per_example=1):
    return [Rated(n // per_example, g, s) for n, (g, s) in enumerate(zip(grades, scores, strict=True))]


def of(ratings, seed=0):
    return agreement(ratings, seed=seed, confidence=0.95)


def test_concordance_of_good_and_bad_is_the_area_under_the_curve():
    generator = random.Random(1)
    grades = [float(generator.random() < 0.4) for _ in range(50)]
    scores = [round(grade + generator.gauss(0, 1), 1) for grade in grades]  # rounded: with ties
    good = [s for g, s in zip(grades, scores, strict=True) if g]
    bad = [s for g, s in zip(grades, scores, strict=True) if not g]
    found = of(rated(grades, scores))
    expected = mannwhitneyu(good, bad).statistic / (len(good) * len(bad))
    assert found.concordance.mean == pytest.approx(expected, abs=1e-12)
    assert found.pairs == len(good) * len(bad)
    assert found.concordance.low < found.concordance.mean < found.concordance.high


def test_kappa_by_hand():
    # 10 verdicts: 4 both good, 3 both bad, 1 only the person, 2 only the score: observed 0.7, chance 0.5 * 0.6 + 0.5 * 0.4
    grades = [1.0] * 5 + [0.0] * 5
    scores = [1.0] * 4 + [0.0] + [1.0] * 2 + [0.0] * 3
    assert of(rated(grades, scores)).kappa == pytest.approx((0.7 - 0.5) / 0.5)


def test_grades_on_a_scale_are_compared_in_pairs():
    assert of(rated([1, 2, 3], [0.1, 0.2, 0.3])).concordance.mean == 1.0
    found = of(rated([1, 2, 3], [0.3, 0.2, 0.1]))
    assert (found.concordance.mean, found.pairs, found.kappa) == (0.0, 3, None)
    assert of(rated([0, 1], [0.5, 0.5])).concordance.mean == 0.5


def test_verdicts_on_one_example_are_no_independent_ones():
    grades, scores = [0, 1] * 8, [0.0, 1.0, 1.0, 0.0] * 4
    assert of(rated(grades, scores, per_example=16)).concordance.low is None
    assert of(rated(grades, scores, per_example=2)).concordance.n == 8


def test_few_verdicts_that_all_agree_say_nothing():
    """Two in the right order are right by chance every second time."""
    few = [Rated(n, float(n % 2), float(n % 2)) for n in range(5)]
    for count in (2, 3, 5):
        found = agreement(few[:count], seed=1, confidence=0.95).concordance
        assert (found.mean, found.low, found.high) == (1.0, None, None)
    enough = [*few, Rated(5, 1.0, 1.0)]
    assert agreement(enough, seed=1, confidence=0.95).concordance.low == 1.0


def test_the_interval_is_the_seeds():
    ratings = rated([0, 1] * 8, [n % 5 / 5 for n in range(16)])
    assert of(ratings) == of(ratings)


def test_nothing_to_agree_about():
    with pytest.raises(DataError, match="all verdicts are alike"):
        of(rated([1, 1], [0.0, 1.0]))


@pytest.mark.parametrize(("verdict", "grade"), [(True, 1), ("Good", 1), ("reject", 0), (3, 3), (0.5, 0.5)])
def test_verdicts_are_read(verdict, grade):
    assert read_verdict({"id": "e", "output": None, "verdict": verdict}, "f:1").grade == grade


NO_VERDICTS = [
    [],
    {"output": 1},
    {"id": True, "output": 1},
    {"id": 1},
    {"id": 1, "output": 1, "verdict": None},
    {"id": 1, "output": 1, "verdict": 10**400},
    {"id": 1, "output": 1, "verdict": float("nan")},
]


@pytest.mark.parametrize("row", NO_VERDICTS)
def test_what_is_no_verdict_is_named_with_its_place(row):
    with pytest.raises(DataError, match="f:3"):
        read_verdict(row, "f:3")


ON_A_SCALE = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=12)


@given(ON_A_SCALE)
def test_counted_pairs_are_those_that_walking_finds(given):
    expected = [
        1.0 if (score - other) * (grade - below) > 0 else 0.5 if score == other else 0.0
        for (grade, score), (below, other) in combinations(given, 2)
        if grade != below
    ]
    if not expected:
        return
    found = of(rated(*zip(*given, strict=True)))
    assert (found.pairs, found.concordance.mean) == (len(expected), pytest.approx(sum(expected) / len(expected)))


def test_a_thousand_verdicts_take_seconds():
    started = time.monotonic()
    found = of(rated([i % 2 for i in range(1000)], [float(i) for i in range(1000)]))
    assert found.pairs == 250_000
    assert time.monotonic() - started < 30  # two million walks through half a million pairs took minutes
