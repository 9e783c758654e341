"""What several rewards must do, and where GDPO differs from GRPO on the sum."""

import math

import pytest
import torch

from nat_finetune.algorithms.advantages import group_advantages
from nat_finetune.algorithms.gdpo import (
    GdpoAdvantages,
    condition_reward,
    gdpo_advantages,
    normalise_samples,
    whiten_tokens,
)
from nat_finetune.errors import ConfigError, DataError

FORMAT_AND_CORRECTNESS = [[1.0, 3.0], [0.0, 3.0], [1.0, -3.0], [0.0, -1.0], [1.0, 1.0], [1.0, 1.0], [0.0, 2.5], [1.0, -0.5]]
IDS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])


def gdpo(rewards: list[list[float]], *, weights: list[float] | None = None, ids: torch.Tensor = IDS) -> GdpoAdvantages:
    rewards_B_K = torch.tensor(rewards, dtype=torch.float32)
    unit = [1.0] * rewards_B_K.shape[1]
    return gdpo_advantages(rewards_B_K, ids, weights_K=weights or unit, eps_group=1e-4, eps_batch=1e-4)


def test_gdpo_separates_what_grpo_on_the_sum_collapses() -> None:
    rewards = torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 0.0], [1.0, 1.0]])
    ids = torch.tensor([0, 0, 1, 1])
    grpo = group_advantages(rewards.sum(1), ids, baseline="mean", scale="group", eps=0.0).advantages_B
    ours = gdpo_advantages(rewards, ids, weights_K=[1, 1], eps_group=0.0, eps_batch=0.0).combined_B
    assert grpo[1] == grpo[3]
    assert ours[3].item() == pytest.approx(2 * ours[1].item())


def test_the_range_of_a_reward_is_not_its_weight() -> None:
    wide = [[fmt, 100 * correct + 7] for fmt, correct in FORMAT_AND_CORRECTNESS]
    torch.testing.assert_close(gdpo(wide).advantages_B, gdpo(FORMAT_AND_CORRECTNESS).advantages_B, rtol=1e-3, atol=1e-3)


def test_weights_set_priorities() -> None:
    only_format = gdpo(FORMAT_AND_CORRECTNESS, weights=[1.0, 0.0])
    torch.testing.assert_close(only_format.combined_B, only_format.per_reward_B_K[:, 0])


def test_mean_zero_deviation_one_over_the_batch() -> None:
    advantages = gdpo(FORMAT_AND_CORRECTNESS).advantages_B
    assert advantages.mean().item() == pytest.approx(0, abs=1e-12)
    assert advantages.std().item() == pytest.approx(1, abs=1e-3)


def test_a_flat_component_is_silent_while_the_other_speaks() -> None:
    result = gdpo([[0.7, 1.0], [0.7, 0.0]], ids=torch.tensor([0, 0]))
    assert result.per_reward_B_K[:, 0].tolist() == [0.0, 0.0]
    assert result.combined_B[0] > 0.7
    assert result.flat_B_K.tolist() == [[True, False], [True, False]]


def test_a_tie_in_the_sum_still_has_signal() -> None:
    # Totals are all 1, so GRPO on the sum is silent; correctness is rarer here than format.
    result = gdpo([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], weights=[1.0, 3.0], ids=torch.zeros(4))
    assert result.combined_B[3] > 0
    assert not result.flat_B_K.any()


@pytest.mark.parametrize("value", [0.7, 1 / 3])
@pytest.mark.parametrize("eps", [0.0, 1e-4])
def test_a_batch_of_flat_groups_is_exactly_zero(value: float, eps: float) -> None:
    # Without an exact test of flatness NeMo RL's float32 gives -0.98 to +1.18 here.
    rewards = torch.tensor([[value, 1.0]] * 11 + [[0.3, 0.2]] * 13, dtype=torch.float32)
    ids = torch.tensor([0] * 11 + [1] * 13)
    for counts in (None, torch.arange(1, 25)):
        batch_eps = eps if counts is None else 0.0
        result = gdpo_advantages(rewards, ids, weights_K=[1, 1], eps_group=eps, eps_batch=batch_eps, token_counts_B=counts)
        assert not result.advantages_B.any()
        assert result.flat_B_K.all()


def test_equal_values_are_exactly_zero_after_either_batch_step() -> None:
    for value in (0.7, 1 / 3, 0.1, 2.6):
        equal = torch.full((11,), value, dtype=torch.float64)
        assert not normalise_samples(equal, eps=0.0).any()
        assert not whiten_tokens(equal, torch.arange(1, 12)).any()


def test_one_reward_is_grpo_and_then_the_batch() -> None:
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    grpo = group_advantages(rewards, IDS, baseline="mean", scale="group", eps=1e-4).advantages_B
    result = gdpo_advantages(rewards.unsqueeze(1), IDS, weights_K=[1.0], eps_group=1e-4, eps_batch=1e-4)
    torch.testing.assert_close(result.combined_B, grpo)
    torch.testing.assert_close(result.advantages_B, (grpo - grpo.mean()) / (grpo.std() + 1e-4))


def test_unknown_components_are_skipped_and_unknown_rows_left_out() -> None:
    nan = math.nan
    rewards = [[1.0, nan], [0.0, 1.0], [1.0, 0.0], [nan, nan]]
    result = gdpo(rewards, ids=torch.zeros(4))
    assert result.per_reward_B_K[0, 1] == 0
    assert result.advantages_B[3] == 0
    assert result.valid_B.tolist() == [True, True, True, False]
    shorter = gdpo(rewards[:3], ids=torch.zeros(3))
    torch.testing.assert_close(result.advantages_B[:3], shorter.advantages_B)


def test_token_whitening_is_repetition_of_rows() -> None:
    rewards, counts = torch.tensor(FORMAT_AND_CORRECTNESS), torch.tensor([5, 3, 8, 2, 4, 6, 7, 1])
    result = gdpo_advantages(rewards, IDS, weights_K=[1, 1], eps_group=1e-6, eps_batch=0.0, token_counts_B=counts)
    tokens = result.combined_B.repeat_interleave(counts)
    expected = (tokens - tokens.mean()) / (tokens.var() + 1e-8).sqrt()
    torch.testing.assert_close(result.advantages_B.repeat_interleave(counts), expected)


def test_a_condition_on_an_unknown_reward_is_unknown() -> None:
    rewards = torch.tensor([[math.nan, 1.0], [1.0, 1.0], [0.0, math.nan]])
    conditioned = condition_reward(rewards, reward=1, requires=0, at_least=1.0, otherwise=-0.5)
    assert conditioned[0, 1].isnan()
    assert conditioned[1:, 1].tolist() == [1.0, -0.5]
    assert rewards[2, 1].isnan()  # the input is not touched


def test_refusals_name_what_is_wrong() -> None:
    rewards, ids = torch.tensor([[1.0, 0.0], [0.0, math.nan]]), torch.tensor([0, 0])
    with pytest.raises(ConfigError, match="1 reward weights for 2 rewards"):
        gdpo_advantages(rewards, ids, weights_K=[1.0], eps_group=0.0, eps_batch=0.0)
    with pytest.raises(DataError, match=r"reward \(1, 1\) is not finite: nan"):
        gdpo_advantages(rewards, ids, weights_K=[1, 1], eps_group=0.0, eps_batch=0.0, allow_missing=False)
    with pytest.raises(ConfigError, match="eps_batch"):
        gdpo_advantages(rewards, ids, weights_K=[1, 1], eps_group=0.0, eps_batch=0.1, token_counts_B=torch.ones(2))
