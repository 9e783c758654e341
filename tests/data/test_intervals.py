"""Intervals of means over clusters: golden values of SciPy 1.x, coverage by simulation, and the ends of the range."""

from __future__ import annotations

import numpy as np
import pytest

from nat_finetune.data.intervals import FEWEST_AGREEING, FEWEST_RESAMPLED, estimate, paired_gain, t_quantile


def alone(values):
    """Scores and clusters where each example is a cluster."""
    scores = {f"e{i}": value for i, value in enumerate(values)}
    return scores, {key: key for key in scores}


def clustered(values_by_cluster):
    scores = {f"{name}/{i}": v for name, values in values_by_cluster.items() for i, v in enumerate(values)}
    return scores, {key: key.split("/")[0] for key in scores}


# --------------------------------------------------------------------------------------------------------- golden values


@pytest.mark.parametrize(
    ("level", "degrees", "value"),
    [(0.975, 1, 12.70620474), (0.975, 2, 4.30265273), (0.975, 3, 3.18244631), (0.975, 7, 2.36462425),
     (0.975, 30, 2.04227246), (0.975, 200, 1.97189622), (0.9, 1, 3.07768354), (0.995, 11, 3.10580652),
     (0.025, 4, -2.77644511), (0.5, 5, 0.0)],
)  # fmt: skip
def test_t_quantile(level, degrees, value):
    assert t_quantile(level, degrees) == pytest.approx(value, abs=1e-7)


def test_bca_of_a_skewed_sample():
    """`scipy.stats.bootstrap(method="BCa")` at the widened level (0.010757 a side), 400,000 resamples."""
    found = estimate(*alone([0.9, 0.95, 1, 1, 0.7, 1, 0.4, 1, 0.85, 1, 0.98, 0.6]), seed=1, resamples=100_000)
    assert found.mean == pytest.approx(0.865)
    assert (found.low, found.high) == (pytest.approx(0.6875, abs=0.004), pytest.approx(0.95667, abs=0.002))
    assert found.n == 12


def test_bca_of_a_ratio_over_unequal_clusters():
    """The same with `paired=True` on sums and counts of clusters: the jackknife leaves out clusters, not examples."""
    hits = {"a": (3, 4), "b": (1, 1), "c": (4, 5), "d": (0, 3), "e": (2, 2), "f": (5, 5), "g": (1, 3), "h": (2, 4), "i": (0, 1),
            "j": (3, 3)}  # fmt: skip
    found = estimate(*clustered({k: [1.0] * n + [0.0] * (of - n) for k, (n, of) in hits.items()}), seed=1, resamples=100_000)
    assert found.mean == pytest.approx(21 / 31)
    assert (found.low, found.high) == (pytest.approx(0.36667, abs=0.006), pytest.approx(0.88636, abs=0.003))
    assert found.n == 10


def test_few_clusters_get_student_t():
    found = estimate(*alone([0.1, 0.3, 0.2]), seed=0)
    half = 4.30265273 * 0.1 / 3**0.5
    assert (found.low, found.high) == (pytest.approx(0.2 - half), pytest.approx(0.2 + half))


def test_two_tasks_that_both_gained_are_no_proof():
    before, clusters = alone([0.5, 0.4])
    gain = paired_gain(before, {"e0": 0.6, "e1": 0.9}, clusters, seed=0)
    assert gain.low is not None
    assert gain.low < 0 < gain.mean


# -------------------------------------------------------------------------------------------------------------- coverage


def coverage(draw, mean, *, clusters, trials=300):
    """Share of trials whose interval holds the true mean; `draw` gives each cluster's scores."""
    rng = np.random.default_rng(20)
    hits = 0
    for trial in range(trials):
        scores, names = clustered({f"c{i}": draw(rng) for i in range(clusters)})
        found = estimate(scores, names, seed=trial, resamples=1_000)
        hits += found.low <= mean <= found.high
    return hits / trials


def unequal(rng):
    """One to five examples whose cluster has a level of its own: resampling examples instead would cover about 0.75."""
    level = rng.normal(0.2, 0.3)
    return list(level + rng.normal(0, 0.1, rng.integers(1, 6)))


@pytest.mark.parametrize("clusters", [3, 7, 12, 20])
def test_coverage_with_correlated_examples(clusters):
    assert coverage(unequal, 0.2, clusters=clusters) > 0.90


@pytest.mark.parametrize("clusters", [14, 30])
def test_coverage_at_the_end_of_the_range(clusters):
    """Most tasks solved, some hardly at all: the percentile interval covers 0.89 with 14."""
    assert coverage(lambda rng: [rng.beta(4, 0.5)], 4 / 4.5, clusters=clusters) > 0.91


def test_gains_that_are_not_there_are_rarely_found():
    rng, found = np.random.default_rng(3), 0
    for trial in range(300):
        gain = estimate(*alone(list(rng.choice([0.5, 0.0, -0.5], 16, p=[0.2, 0.6, 0.2]))), seed=trial, resamples=1_000)
        found += gain.low > 0
    assert found / 300 < 0.05  # 0.025 is what the level asks for


# ------------------------------------------------------------------------------------------------------- ends of the range


def test_nothing_known():
    assert estimate({}, {}, seed=0) == estimate({"a": None}, {"a": "t"}, seed=0)
    found = estimate({"a": None}, {"a": "t"}, seed=0)
    assert (found.mean, found.low, found.high, found.n) == (None, None, None, 0)


def test_one_cluster_has_no_interval():
    found = estimate(*clustered({"a": [0.0, 1.0, 1.0]}), seed=0)
    assert (found.mean, found.low, found.high, found.n) == (pytest.approx(2 / 3), None, None, 1)


@pytest.mark.parametrize(("clusters", "has_interval"), [(FEWEST_AGREEING - 1, False), (FEWEST_AGREEING, True), (40, True)])
def test_agreement_needs_enough_who_agree(clusters, has_interval):
    found = estimate(*alone([0.1 + 0.2] * clusters), seed=0)
    assert (found.low, found.high) == ((found.mean, found.mean) if has_interval else (None, None))


def test_unknown_scores_are_left_out_not_zero():
    scores, clusters = alone([1.0, None, 1.0, 0.5])
    found = estimate(scores, clusters, seed=0)
    assert (found.mean, found.n) == (pytest.approx(2.5 / 3), 3)


def test_gain_is_paired_and_leaves_out_what_one_side_does_not_know():
    before = {"a": 0.0, "b": 0.5, "c": None, "d": 1.0, "e": 0.2}
    after = {"a": 0.5, "b": 1.0, "c": 1.0, "d": None, "f": 0.9}
    found = paired_gain(before, after, {key: key for key in "abcdef"}, seed=0)
    assert (found.mean, found.n) == (0.5, 2)


def test_pairing_takes_the_spread_of_tasks_out():
    rng = np.random.default_rng(5)
    before, clusters = alone(list(rng.random(20)))
    after = {key: value + 0.05 + 0.01 * rng.normal() for key, value in before.items()}
    gain, alone_after = paired_gain(before, after, clusters, seed=0), estimate(after, clusters, seed=0)
    assert gain.high - gain.low < 0.1 * (alone_after.high - alone_after.low)


def test_one_far_outlier_stays_finite():
    found = estimate(*alone([0.0] * 9 + [1e6]), seed=0)
    assert 0.0 <= found.low <= found.mean <= found.high <= 1e6


def test_same_seed_same_interval_and_the_order_of_examples_within_clusters_is_nothing():
    scores, clusters = clustered({f"c{i}": [i * 0.1, 0.3, 0.5] for i in range(FEWEST_RESAMPLED + 2)})
    backwards = {key: scores[key] for key in sorted(scores, key=lambda k: (k.split("/")[0], -int(k.split("/")[1])))}
    assert estimate(scores, clusters, seed=4) == estimate(backwards, clusters, seed=4)
    assert estimate(scores, clusters, seed=4) != estimate(scores, clusters, seed=5)


def test_confidence_widens():
    scores, clusters = alone([0.1 * i for i in range(10)])
    narrow, wide = (estimate(scores, clusters, seed=0, confidence=level) for level in (0.8, 0.999999))
    assert wide.low < narrow.low < narrow.high < wide.high


def test_many_clusters_are_resampled_in_blocks():
    scores, clusters = alone(list(np.random.default_rng(0).random(3_000)))
    found = estimate(scores, clusters, seed=0, resamples=1_000)
    assert found.high - found.low == pytest.approx(2 * 1.96 * (1 / 12 / 3_000) ** 0.5, rel=0.1)
