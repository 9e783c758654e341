"""Means with intervals that say what varies: whole tasks are resampled, not rollouts.

The interval is the bias-corrected and accelerated bootstrap (BCa; Efron 1987) over clusters: with the 10 to 30 tasks of a small
test set, and scores that pile up at an end of their range, the plain percentile interval covers too little.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from nat_finetune.types import Estimate

Floats = NDArray[np.float64]


def estimate(
    scores: Mapping[str, float | None],
    clusters: Mapping[str, str],
    *,
    seed: int,
    confidence: float = 0.95,
    resamples: int = 10_000,
) -> Estimate:
    """Mean over examples, its interval over clusters of examples.

    Args:
        scores: by example key; None is unknown and left out.
        clusters: example key to cluster (task).
        seed: of the resampling.
        confidence: of the interval.
        resamples: bootstrap samples.

    Returns:
        The mean, None without a known score; the interval, None with fewer than two clusters; n, the number of clusters.
    """
    sums: dict[str, list[float]] = {}
    for key, value in scores.items():
        if value is not None:
            sums.setdefault(clusters[key], []).append(value)
    if not sums:
        return Estimate(None, None, None, 0)
    totals = np.array([sum(values) for values in sums.values()], dtype=np.float64)
    counts = np.array([len(values) for values in sums.values()], dtype=np.float64)
    mean = float(totals.sum() / counts.sum())
    if len(sums) < 2:
        return Estimate(mean, None, None, len(sums))
    low, high = _bca(totals, counts, np.random.default_rng(seed), confidence, resamples)
    return Estimate(mean, low, high, len(sums))


def paired_gain(
    before: Mapping[str, float | None],
    after: Mapping[str, float | None],
    clusters: Mapping[str, str],
    *,
    seed: int,
    confidence: float = 0.95,
    resamples: int = 10_000,
) -> Estimate:
    """Mean of after - before, paired by example; an example that is unknown on either side is left out."""
    gains: dict[str, float | None] = {}
    for key, value in after.items():
        earlier = before.get(key)
        gains[key] = None if value is None or earlier is None else value - earlier
    return estimate(gains, clusters, seed=seed, confidence=confidence, resamples=resamples)


def _bca(
    totals_C: Floats, counts_C: Floats, generator: np.random.Generator, confidence: float, resamples: int
) -> tuple[float, float]:
    """BCa interval of the ratio sum(totals) / sum(counts) over resampled clusters C."""
    clusters = len(totals_C)
    mean = totals_C.sum() / counts_C.sum()
    spread = totals_C - mean * counts_C
    if np.allclose(spread, 0.0, atol=1e-15):
        return float(mean), float(mean)  # every cluster says the same
    draws_R_C = generator.integers(0, clusters, size=(resamples, clusters))
    means_R = np.sort(totals_C[draws_R_C].sum(axis=1) / counts_C[draws_R_C].sum(axis=1))
    normal = NormalDist()
    below = (np.sum(means_R < mean) + 0.5 * np.sum(means_R == mean)) / resamples
    bias = normal.inv_cdf(float(np.clip(below, 1 / resamples, 1 - 1 / resamples)))
    jackknife_C = (totals_C.sum() - totals_C) / (counts_C.sum() - counts_C)
    deviation_C = jackknife_C.mean() - jackknife_C
    acceleration = float((deviation_C**3).sum() / (6.0 * ((deviation_C**2).sum() ** 1.5)))

    def bound(level: float) -> float:
        z = bias + normal.inv_cdf(level)
        adjusted = normal.cdf(bias + z / (1.0 - acceleration * z))
        return float(np.quantile(means_R, adjusted))

    tail = (1.0 - confidence) / 2.0
    return bound(tail), bound(1.0 - tail)
