"""Rewards as they are trained: conditions, sums that tie on paper, and what makes a rollout useless."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nat_finetune.algorithms.gdpo import condition_reward
from nat_finetune.data.rewards import compared, paid_rewards, spread, unknown_rewards, weighted_sum
from nat_finetune.types import RewardCondition, RewardTerm, Target

SHORT = RewardTerm("short", condition=RewardCondition("right", at_least=1.0, otherwise=-0.5))
RIGHT = RewardTerm("right")


def target(*terms, apart=False):
    return Target(("f",), "policy", terms, rewards_apart=apart)


@pytest.mark.parametrize(("right", "paid"), [(1.0, 0.9), (2.0, 0.9), (0.99, -0.5), (None, None), (math.nan, None)])
def test_a_reward_with_a_condition_is_paid_only_where_the_other_score_is_high_enough(right, paid):
    scores = {"right": right, "short": 0.9, "watched": 1.0}
    found = paid_rewards(scores, [SHORT, RIGHT])
    assert list(found) == ["short", "right"]
    assert found["short"] == paid


def test_a_condition_may_ask_an_evaluator_that_is_no_reward_itself():
    assert paid_rewards({"right": 0.0, "short": 1.0}, [SHORT]) == {"short": -0.5}
    assert target(SHORT).needed_scores == ("short", "right")
    assert target(SHORT).reward_names == ("short",)


scores = st.one_of(st.none(), st.sampled_from([0.0, 0.5, 1.0]))


@given(scores, scores)
def test_conditions_are_those_of_the_algorithm(right, short):
    row = [math.nan if value is None else value for value in (right, short)]
    wanted = condition_reward(torch.tensor([row]), reward=1, requires=0, at_least=1.0, otherwise=-0.5)[0, 1].item()
    found = paid_rewards({"right": right, "short": short}, [SHORT])["short"]
    assert found == (None if math.isnan(wanted) else pytest.approx(wanted))


def test_sums_that_are_equal_on_paper_are_equal():
    terms = [RewardTerm("a"), RewardTerm("b", 1 / 3), RewardTerm("c", 2.0)]
    assert weighted_sum({"a": 0.1, "b": 0.6, "c": 0.0}, terms) == weighted_sum({"a": 0.0, "b": 0.9, "c": 0.0}, terms) == 0.3
    assert weighted_sum({"a": 0.1, "b": 0.6, "c": -0.15}, terms) == 0.0
    assert weighted_sum({"a": 0.1 + 0.2}, [RewardTerm("a")]) == 0.1 + 0.2  # one reward stays what it is


@pytest.mark.parametrize("unknown", [None, math.nan, math.inf])
def test_a_sum_with_an_unknown_part_is_unknown(unknown):
    assert weighted_sum({"a": 1.0, "b": unknown}, [RewardTerm("a"), RewardTerm("b")]) is None
    assert weighted_sum({}, []) is None


def test_totals_can_tie_where_the_rewards_do_not():
    group = [{"a": 1.0, "b": 0.0}, {"a": 0.0, "b": 1.0}]
    terms = (RewardTerm("a"), RewardTerm("b"))
    assert spread(group, target(*terms)) == 0
    assert spread(group, target(*terms, apart=True)) == 1
    assert spread(group, target(RewardTerm("a"), RewardTerm("b", -2.0))) == 3
    assert compared(group[0], target(*terms)) == (1.0,)
    assert compared(group[0], target(*terms, apart=True)) == (1.0, 0.0)


def test_an_unknown_reward_does_not_make_a_group_differ():
    group = [{"a": 1.0, "b": None}, {"a": 1.0, "b": 0.5}, {"a": None, "b": 0.5}]
    assert spread(group, target(RewardTerm("a"), RewardTerm("b"), apart=True)) == 0


def test_what_makes_a_rollout_useless():
    terms = (RewardTerm("a"), RewardTerm("b"))
    assert unknown_rewards({"a": 1.0, "b": None}, target(*terms)) == ("b",)
    assert unknown_rewards({"a": 1.0, "b": None}, target(*terms, apart=True)) == ()
    assert unknown_rewards({"a": None, "b": math.nan}, target(*terms, apart=True)) == ("a", "b")
    assert unknown_rewards({}, target()) == ()
