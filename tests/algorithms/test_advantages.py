"""Laws of group advantages, and the decisions that sources differ on."""

import math
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nat_finetune.algorithms.advantages import BASELINES, SCALES, group_advantages
from nat_finetune.errors import DataError

REWARD = st.integers(-30, 30).map(lambda tenths: tenths / 10)
GROUP = st.lists(REWARD, min_size=2, max_size=9)
BATCH = st.lists(GROUP, min_size=1, max_size=4)


def batch(groups: list[list[float]]) -> tuple[Tensor, Tensor]:
    rewards = torch.tensor([reward for group in groups for reward in group], dtype=torch.float64)
    ids = torch.tensor([index for index, group in enumerate(groups) for _ in group])
    return rewards, ids


def grpo(rewards_B: Tensor, ids_B: Tensor, eps: float = 0.0) -> Tensor:
    return group_advantages(rewards_B, ids_B, baseline="mean", scale="group", eps=eps).advantages_B


@given(BATCH)
@settings(max_examples=60, deadline=None)
def test_advantages_of_a_group_sum_to_zero(groups: list[list[float]]) -> None:
    rewards, ids = batch(groups)
    for scale in SCALES:
        advantages = group_advantages(rewards, ids, baseline="mean", scale=scale, eps=1e-4).advantages_B
        for group in range(len(groups)):
            assert advantages[ids == group].sum().item() == pytest.approx(0, abs=1e-9)


@given(BATCH, REWARD, st.sampled_from([0.25, 2.0, 17.0]))
@settings(max_examples=60, deadline=None)
def test_shift_and_scale_change_nothing_when_normalised(groups: list[list[float]], shift: float, factor: float) -> None:
    rewards, ids = batch(groups)
    torch.testing.assert_close(grpo(rewards * factor + shift, ids), grpo(rewards, ids), rtol=1e-7, atol=1e-7)


@given(BATCH, st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_permuting_rows_permutes_advantages(groups: list[list[float]], random: Random) -> None:
    rewards, ids = batch(groups)
    order = list(range(len(rewards)))
    random.shuffle(order)
    torch.testing.assert_close(grpo(rewards[order], ids[order]), grpo(rewards, ids)[order])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.7, 1 / 3, 0.1, 2.6])
@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("scale", SCALES)
def test_a_flat_group_is_exactly_zero(dtype: torch.dtype, value: float, baseline: str, scale: str) -> None:
    rewards = torch.tensor([value] * 11 + [0.0, 1.0], dtype=dtype)  # a power of two would round back
    ids = torch.tensor([0] * 11 + [1] * 2)
    result = group_advantages(rewards, ids, baseline=baseline, scale=scale, eps=0.0)
    assert result.advantages_B[:11].tolist() == [0.0] * 11
    assert result.flat_B.tolist() == [True] * 11 + [False] * 2
    assert result.advantages_B[11:].abs().min() > 0.4


def test_a_group_of_one_is_zero_whatever_its_reward() -> None:
    for baseline in BASELINES:
        for scale in SCALES:
            result = group_advantages(
                torch.tensor([3.0, 1.0, 0.0]), torch.tensor([9, 4, 4]), baseline=baseline, scale=scale, eps=1e-4
            )
            assert result.advantages_B[0] == 0
            assert result.flat_B.tolist() == [True, False, False]


def test_unknown_rewards_leave_the_others_as_if_they_were_not_there() -> None:
    nan = math.nan
    with_unknown = group_advantages(
        torch.tensor([1.0, nan, 0.0, 0.5, nan]), torch.tensor([0, 0, 0, 0, 1]), baseline="mean", scale="group", eps=1e-4
    )
    without = grpo(torch.tensor([1.0, 0.0, 0.5]), torch.tensor([0, 0, 0]), eps=1e-4)
    assert with_unknown.advantages_B[[0, 2, 3]].tolist() == without.tolist()
    assert with_unknown.advantages_B[[1, 4]].tolist() == [0.0, 0.0]
    assert with_unknown.valid_B.tolist() == [True, False, True, True, False]
    assert with_unknown.flat_B.tolist() == [False] * 4 + [True]


def test_one_known_reward_in_a_group_is_zero() -> None:
    rewards = torch.tensor([5.0, math.nan, math.nan])
    assert grpo(rewards, torch.zeros(3)).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("bad", [math.inf, -math.inf])
def test_infinity_is_an_error_also_where_unknown_is_allowed(bad: float) -> None:
    with pytest.raises(DataError, match="reward 2 is not finite"):
        grpo(torch.tensor([1.0, 0.0, bad]), torch.zeros(3))


def test_leave_one_out_is_the_mean_of_the_others() -> None:
    rewards = torch.tensor([1.0, 2.0, 6.0])
    result = group_advantages(rewards, torch.zeros(3), baseline="leave_one_out", scale="none", eps=0.0)
    assert result.baseline_B.tolist() == [4.0, 3.5, 1.5]
    assert result.advantages_B.tolist() == [-3.0, -1.5, 4.5]


def test_one_odd_reward_among_flat_peers_is_not_divided_by_rounding_noise() -> None:
    # NeMo RL's one-pass float32 variance gives +7428 here.
    rewards = torch.tensor([0.3] * 7 + [1.0], dtype=torch.float32)
    result = group_advantages(rewards, torch.zeros(8), baseline="leave_one_out", scale="group", eps=1e-6)
    assert result.advantages_B[-1].item() == pytest.approx(0.7)


def test_the_deviation_is_the_samples() -> None:
    assert grpo(torch.tensor([0.0, 1.0]), torch.zeros(2)).tolist() == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)])


def test_eps_is_added_to_the_deviation() -> None:
    assert grpo(torch.tensor([-1.0, 0.0, 1.0]), torch.zeros(3), eps=1.0).tolist() == [-0.5, 0.0, 0.5]


def test_nothing_known_at_all_is_all_zero() -> None:
    for scale in SCALES:
        result = group_advantages(torch.full((3,), math.nan), torch.zeros(3), baseline="mean", scale=scale, eps=0.0)
        assert result.advantages_B.tolist() == [0.0] * 3
