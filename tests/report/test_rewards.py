"""Each reward by itself: level, spread, unknown, and whether it goes with the others inside groups."""

import pytest

from nat_finetune.report.rewards import correlation, reward_figures, reward_rows
from nat_finetune.types import RewardCondition, RewardTerm, Rollout, Target


def rollouts(*rows):
    return [Rollout(f"r{i}", example, 0, 0, (), rewards=rewards) for i, (example, rewards) in enumerate(rows)]


def test_level_spread_and_what_is_unknown():
    made = rollouts((1, {"a": 1.0}), (1, {"a": 0.0}), (1, {"a": None}), ("1", {"a": 0.5}), (2, {"a": 0.25}), (2, {"a": 0.75}))
    assert reward_figures(made, Target((), "policy")) == {"a": {"mean": 0.5, "spread": 0.75, "unknown": 1}}
    empty = reward_figures(rollouts((1, {"a": None})), Target((), "policy"))
    assert empty == {"a": {"mean": None, "spread": None, "unknown": 1}}


def test_correlation_is_inside_groups():
    """Between the examples both rise together; inside each, one falls where the other rises."""
    made = rollouts(
        (1, {"a": 0.0, "b": 1.0}), (1, {"a": 1.0, "b": 0.0}), (2, {"a": 10.0, "b": 11.0}), (2, {"a": 11.0, "b": 10.0})
    )
    figures = reward_figures(made, Target((), "policy"))
    assert figures["a"]["correlation"] == {"b": -1.0}
    assert figures["b"]["correlation"] == {"a": -1.0}


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ([0.0, 1.0], [0.5, 0.5], None),
        ([0.0, None], [0.5, 0.7], None),
        ([0.0, 1.0, 2.0], [0.0, 1.0, 0.0], 0.0),
        ([0.0, 1.0, 2.0], [0.0, 0.2, 0.4], 1.0),
        ([0.0, 1.0, None], [1.0, 2.0, -9.0], 1.0),
    ],
)
def test_correlations_by_hand(first, second, found):
    assert correlation(first, second, [list(range(len(first)))]) == (None if found is None else pytest.approx(found))


def test_a_conditioned_reward_is_shown_before_and_after():
    target = Target((), "policy", (RewardTerm("short", condition=RewardCondition("right", at_least=1.0, otherwise=-1.0)),))
    figures = reward_figures(rollouts((1, {"short": 1.0, "right": 1.0}), (1, {"short": 1.0, "right": 0.0})), target)
    assert (figures["short"]["mean"], figures["short"]["paid_mean"]) == (1.0, 0.0)
    assert "paid_mean" not in figures["right"]


def test_the_rows_of_the_report_are_means_over_steps():
    steps = [
        {"reward": {"a": {"mean": 0.0, "spread": 1.0, "correlation": {"b": 0.5}}, "b": {"mean": None, "spread": None}}},
        {
            "reward": {"a": {"mean": 0.5, "spread": 0.5, "correlation": {"b": None}}, "b": {"mean": 2.0, "spread": None}},
            "advantage_share": {"a": 1.0},
        },
    ]
    trained, watched = reward_rows(steps, ["a"])
    assert trained == {
        "name": "a",
        "trained": True,
        "first": 0.0,
        "last": 0.5,
        "spread": 0.75,
        "share": 1.0,
        "correlation": {"b": 0.5},
    }
    assert (watched["trained"], watched["first"], watched["spread"], watched["share"]) == (False, 2.0, None, None)
