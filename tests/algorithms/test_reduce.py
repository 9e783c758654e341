"""Weights: what counts the same under each reduction, and that the whole step's weights add up to what they should."""

import pytest
import torch

from nat_finetune.algorithms.reduce import (
    REDUCTIONS,
    StepCounts,
    constant_length,
    rollout_mean,
    sequence_mean,
    token_mean,
    tokens_by_rollout,
)
from nat_finetune.errors import DataError

MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0]], dtype=torch.float64)
ROLLOUTS = torch.tensor([5, 5, 2, 2])


def test_weights_of_a_mean_sum_to_one() -> None:
    trained = MASK[:3]
    tokens = tokens_by_rollout(MASK, ROLLOUTS)[:3]
    for weights in (
        token_mean(trained, total_tokens=9),
        sequence_mean(trained, total_sequences=3),
        rollout_mean(trained, tokens, total_rollouts=2),
    ):
        assert weights.sum().item() == pytest.approx(1)


def test_what_counts_the_same() -> None:
    assert sequence_mean(MASK, total_sequences=4).sum(-1).tolist() == pytest.approx([0.25, 0.25, 0.25, 0])
    by_rollout = rollout_mean(MASK, tokens_by_rollout(MASK, ROLLOUTS), total_rollouts=2).sum(-1)
    assert by_rollout.tolist() == pytest.approx([0.375, 0.125, 0.5, 0])
    assert token_mean(MASK, total_tokens=9).sum(-1).tolist() == pytest.approx([6 / 9, 2 / 9, 1 / 9, 0])


def test_constant_length_does_not_look_at_lengths() -> None:
    weights = constant_length(MASK, total_sequences=4, max_length=10)
    assert weights[MASK > 0].unique().tolist() == [1 / 40]


@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_row_without_trained_tokens_is_zero_not_nan(name: str) -> None:
    counts = StepCounts(tokens=9, sequences=4, rollouts=2, max_length=6)
    weights = REDUCTIONS[name](MASK, tokens_by_rollout(MASK, ROLLOUTS), counts)
    assert weights[3].tolist() == [0.0] * 6
    assert torch.equal(weights > 0, MASK > 0)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_step_with_nothing_to_train_is_refused(name: str) -> None:
    counts = StepCounts(tokens=0, sequences=0, rollouts=0, max_length=6)
    with pytest.raises(DataError, match="something to train"):
        REDUCTIONS[name](0 * MASK, torch.zeros(4), counts)
