"""Credit of turns: returns, cells, and what stands alone."""

import math

import pytest
import torch

from nat_finetune.algorithms.credit import discounted_returns, turn_advantages
from nat_finetune.errors import ConfigError


def test_undiscounted_return_of_the_first_turn_is_the_sum() -> None:
    rewards = torch.tensor([0.25, -1.0, 0.5, 2.0])
    assert discounted_returns(rewards, discount=1.0)[0] == rewards.sum()
    assert discounted_returns(rewards, discount=0.0).tolist() == rewards.tolist()


def test_an_unknown_step_makes_earlier_returns_unknown_but_not_later_ones() -> None:
    rewards = torch.tensor([1.0, math.nan, 1.0])
    assert discounted_returns(rewards, discount=0.9).isnan().tolist() == [True, True, False]
    assert discounted_returns(rewards, discount=0.0).isnan().tolist() == [False, True, False]
    assert rewards[0] == 1.0


@pytest.mark.parametrize("discount", [-0.1, 1.1, math.nan])
def test_an_impossible_discount_is_refused(discount: float) -> None:
    with pytest.raises(ConfigError, match="discount"):
        discounted_returns(torch.zeros(2), discount=discount)


def test_turns_are_compared_by_cell_inside_their_group_only() -> None:
    # Two groups with the same turn indices; three and two turns alive.
    returns = torch.tensor([1.0, 0.0, 4.0, 2.0, 9.0, 0.5, 0.0])
    groups = torch.tensor([0, 0, 0, 0, 0, 1, 1])
    turns = torch.tensor([0, 0, 1, 1, 2, 0, 0])
    outcome = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, 0.3, -0.3], dtype=torch.float64)
    result = turn_advantages(returns, groups, turns, outcome, baseline="mean", scale="none", eps=0.0)
    assert result.tolist() == [0.5, -0.5, 1.0, -1.0, 1.0, 0.25, -0.25]


def test_an_unknown_return_falls_back_and_does_not_count_as_alive() -> None:
    returns = torch.tensor([1.0, math.nan, 0.0, 5.0])
    turns = torch.tensor([0, 0, 1, 1])
    outcome = torch.tensor([0.7, -0.7, 0.2, -0.2], dtype=torch.float64)
    result = turn_advantages(returns, torch.zeros(4).long(), turns, outcome, baseline="mean", scale="none", eps=0.0)
    assert result.tolist() == [0.7, -0.7, -2.5, 2.5]


def test_a_flat_cell_is_zero_not_the_outcome() -> None:
    outcome = torch.tensor([0.7, -0.7], dtype=torch.float64)
    zeros = torch.zeros(2).long()
    result = turn_advantages(torch.tensor([0.7, 0.7]), zeros, zeros, outcome, baseline="mean", scale="group", eps=0.0)
    assert result.tolist() == [0.0, 0.0]
