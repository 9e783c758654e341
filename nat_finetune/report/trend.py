"""Does a figure rise or fall over the steps? A straight line by least squares, and its standard error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, sqrt
from statistics import fmean

FEWEST = 6
"""Points below which nothing is said."""
_FEWEST_SINCE = 4
"""Points since its height from which a fall is seen."""
_ERRORS = 3.0
"""Standard errors that a slope must be away from 0: steps follow from one another, so that two would see too much."""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Trend:
    """A figure over the steps."""

    first: float
    """Mean of the first quarter of the points."""
    last: float
    """Mean of the last quarter."""
    direction: int
    """1 where it rises for sure, -1 where it falls, else 0."""


def slope(points: Points) -> tuple[float, float]:
    """Least-squares slope and its standard error, of three or more points with differing x.

    >>> slope([(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)])
    (2.0, 0.0)
    """
    x, y = fmean(p[0] for p in points), fmean(p[1] for p in points)
    squares = fsum((p[0] - x) ** 2 for p in points)
    rise = fsum((p[0] - x) * (p[1] - y) for p in points) / squares
    rest = fsum((p[1] - y - rise * (p[0] - x)) ** 2 for p in points)
    return rise, sqrt(rest / (len(points) - 2) / squares)


def trend(points: Points) -> Trend | None:
    """Where a figure came from and went to; None of fewer than `FEWEST` points.

    >>> trend([(float(step), 2.0 * step) for step in range(8)])
    Trend(first=1.0, last=13.0, direction=1)
    """
    if len(points) < FEWEST:
        return None
    quarter = max(1, len(points) // 4)
    rise, error = slope(points)
    sure = abs(rise) > _ERRORS * error and rise != 0
    return Trend(
        fmean(y for _, y in points[:quarter]),
        fmean(y for _, y in points[-quarter:]),
        0 if not sure else 1 if rise > 0 else -1,
    )


def falls(points: Points) -> Trend | None:
    """Where a figure came from and went to if it fell for sure, all along or since its height and to below where it began.

    >>> falls([(float(step), level) for step, level in enumerate([2, 3, 5, 6, 4, 3, 2, 0])])
    Trend(first=2.5, last=1.0, direction=-1)
    """
    whole = trend(points)
    if whole is None or whole.direction < 0:
        return whole
    quarter = max(1, len(points) // 4)
    heights = [fmean(y for _, y in points[begin : begin + quarter]) for begin in range(len(points) - quarter + 1)]
    since = points[heights.index(max(heights)) :]
    if len(since) < _FEWEST_SINCE or whole.last >= whole.first:
        return None
    drop, error = slope(since)
    return Trend(whole.first, whole.last, -1) if drop < -_ERRORS * error else None
