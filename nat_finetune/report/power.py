"""How many test tasks it would take to see a gain of the size that was seen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

POWER = 0.8
"""Chance with which a gain that is truly there should show."""


def tasks_needed(gain: Mapping[str, Any] | None, *, confidence: float) -> int | None:
    """Tasks on which a true gain of this size would show in four of five runs; None where it is unknown or not above 0.

    Rough: with s the standard error of the gain on n tasks, taken from the width of its interval (width = 2·z_c·s), a gain g
    shows with chance `POWER` on n·((z_c + z_p)·s / g)² tasks (normal approximation; z_c of the interval's level, two-sided,
    z_p of the power; Cohen 1988, ch. 2). Tasks must be as different from one another as these are.

    Gain 0.1 in [-0.1, 0.3] on 10 tasks: s = 0.1, and 10·2.8² = 79:

    >>> tasks_needed({"mean": 0.1, "low": -0.096, "high": 0.296, "n": 10}, confidence=0.95)
    79
    """
    if gain is None or any(gain[key] is None for key in ("mean", "low", "high")) or gain["mean"] <= 0:
        return None
    of_level = NormalDist().inv_cdf(0.5 + confidence / 2)
    error = float(gain["high"] - gain["low"]) / 2 / of_level
    tasks = int(gain["n"])
    needed: int = math.ceil(tasks * ((of_level + NormalDist().inv_cdf(POWER)) * error / float(gain["mean"])) ** 2)
    return max(needed, tasks)


def power_sentence(gain: Mapping[str, Any] | None, *, confidence: float) -> str | None:
    """What to say beside "no significant gain"; None where the gain is significant or not above 0."""
    needed = tasks_needed(gain, confidence=confidence)
    if gain is None or needed is None or gain["low"] > 0:
        return None
    more = needed - gain["n"]
    return f"to see a gain of this size would take about {needed:,} test tasks, {more:,} more (roughly; docs/run-folder.md)"
