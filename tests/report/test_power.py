"""How many test tasks a gain of the observed size would need: held against a simulation."""

from __future__ import annotations

import numpy as np
import pytest

from nat_finetune.report.data import headline
from nat_finetune.report.power import power_sentence, tasks_needed


def gain(mean, low, high, n):
    return {"mean": mean, "low": low, "high": high, "n": n}


def test_four_of_five_runs_on_that_many_tasks_show_it():
    """Gains of tasks with mean 0.1 and deviation 0.5: seen on 20 tasks with the standard error that these have."""
    error = 0.5 / 20**0.5
    needed = tasks_needed(gain(0.1, 0.1 - 1.96 * error, 0.1 + 1.96 * error, 20), confidence=0.95)
    drawn = np.random.default_rng(0).normal(0.1, 0.5, (4_000, needed))
    shows = drawn.mean(1) - 1.96 * drawn.std(1, ddof=1) / needed**0.5 > 0
    assert needed == 197
    assert shows.mean() == pytest.approx(0.8, abs=0.02)


@pytest.mark.parametrize(
    "unknown", [None, gain(None, None, None, 0), gain(0.1, None, None, 1), gain(-0.1, -0.2, 0.1, 9), gain(0.0, -0.2, 0.2, 9)]
)
def test_without_a_gain_there_is_no_number(unknown):
    assert tasks_needed(unknown, confidence=0.95) is None


def test_the_headline_says_so_and_only_where_nothing_shows():
    metric = {"before": {"mean": 0.5}, "after": {"mean": 0.6}, "gain": gain(0.1, -0.096, 0.296, 10)}
    said = headline("outcome", metric, "no significant gain", None)
    assert said.endswith(
        "gain +0.100 [-0.096, +0.296] on 10 held-out tasks; to see a gain of this size would take about 79 test tasks, 69 more "
        "(roughly; docs/run-folder.md)"
    )
    assert power_sentence(gain(0.1, 0.01, 0.19, 10), confidence=0.95) is None


@pytest.mark.parametrize("unknown", [gain(None, None, None, 0), gain(0.1, None, None, 1)])
def test_a_headline_without_a_gain_tells_a_missing_test_set_from_one_that_says_nothing(unknown):
    metric = {"before": {"mean": 0.5}, "after": {"mean": 0.6}}
    said = headline("outcome", metric | {"gain": unknown}, "not measured", None)
    assert said == f"not measured: outcome is known before and after on {unknown['n']} held-out tasks, too few to tell a gain"
    assert headline("outcome", metric | {"gain": None}, "not measured", None).endswith(
        "no test set compares the policy before and after"
    )
