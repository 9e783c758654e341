"""Laws of the preference losses."""

import math

import pytest
import torch
from torch import Tensor

from nat_finetune.algorithms.dpo import PAIR_LOSSES, PreferenceLoss, preference_loss, sequence_logprobs
from nat_finetune.errors import ConfigError, DataError


def pairs(seed: int = 0, size: int = 6) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [-5 * torch.rand(size, generator=generator, dtype=torch.float64) for _ in range(4)]


def dpo(tensors: list[Tensor], *, loss: str = "sigmoid", beta: float = 0.3, **options: object) -> PreferenceLoss:
    return preference_loss(*tensors, **{"loss": loss, "beta": beta, "total_pairs": len(tensors[0])} | options)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("beta", [0.01, 0.1, 5.0])
@pytest.mark.parametrize("loss", ["sigmoid", "sigmoid_norm"])
def test_ln_2_when_the_policy_is_the_reference(loss: str, beta: float, smoothing: float) -> None:
    chosen, rejected, *_ = pairs()
    result = dpo([chosen, rejected, chosen, rejected], loss=loss, beta=beta, label_smoothing=smoothing)
    assert result.loss.item() == pytest.approx(math.log(2))
    assert not result.correct_B.any()  # ties are not won


def test_swapping_chosen_and_rejected_mirrors_the_margin() -> None:
    policy_c, policy_r, reference_c, reference_r = pairs()
    there = dpo([policy_c, policy_r, reference_c, reference_r])
    back = dpo([policy_r, policy_c, reference_r, reference_c])
    torch.testing.assert_close(back.margin_B, -there.margin_B)
    torch.testing.assert_close(back.pair_loss_B - there.pair_loss_B, there.margin_B)  # softplus(z) - softplus(-z) = z


def test_fully_smoothed_labels_don_t_care_which_was_chosen() -> None:
    policy_c, policy_r, reference_c, reference_r = pairs()
    there = dpo([policy_c, policy_r, reference_c, reference_r], label_smoothing=0.5)
    back = dpo([policy_r, policy_c, reference_r, reference_c], label_smoothing=0.5)
    torch.testing.assert_close(there.loss, back.loss)


def test_the_robust_loss_is_unbiased_under_flipped_labels() -> None:
    policy_c, policy_r, reference_c, reference_r = pairs()
    clean = dpo([policy_c, policy_r, reference_c, reference_r]).pair_loss_B
    kept = dpo([policy_c, policy_r, reference_c, reference_r], loss="robust", label_smoothing=0.2).pair_loss_B
    flipped = dpo([policy_r, policy_c, reference_r, reference_c], loss="robust", label_smoothing=0.2).pair_loss_B
    torch.testing.assert_close(0.8 * kept + 0.2 * flipped, clean)


def test_ipo_is_satisfied_at_its_target_and_pulls_back_beyond() -> None:
    zero = torch.zeros(1, dtype=torch.float64)
    chosen = torch.tensor([7.0], dtype=torch.float64, requires_grad=True)
    dpo([chosen, zero, zero, zero], loss="ipo_sum", beta=0.1).loss.backward()
    assert chosen.grad is not None
    assert chosen.grad.item() == pytest.approx(2 * (7 - 5))


@pytest.mark.parametrize("loss", PAIR_LOSSES)
def test_gradcheck(loss: str) -> None:
    policy_c, policy_r, reference_c, reference_r = pairs()

    def total(chosen: Tensor, rejected: Tensor) -> Tensor:
        return dpo([chosen, rejected, reference_c, reference_r], loss=loss, chosen_nll_B=-chosen, sft_weight=0.2).loss

    assert torch.autograd.gradcheck(total, (policy_c.requires_grad_(), policy_r.requires_grad_()))


@pytest.mark.parametrize("loss", PAIR_LOSSES)
def test_pairs_one_by_one_are_the_batch(loss: str) -> None:
    tensors, weights = pairs(), torch.tensor([1.0, 0.5, 0.5, 1.0, 0.25, 2.0], dtype=torch.float64)
    whole = dpo(tensors, loss=loss, pair_weights_B=weights, total_pairs=5.25, chosen_nll_B=-tensors[0], sft_weight=0.5)
    parts = [
        dpo(
            [tensor[i : i + 1] for tensor in tensors],
            loss=loss,
            pair_weights_B=weights[i : i + 1],
            total_pairs=5.25,
            chosen_nll_B=-tensors[0][i : i + 1],
            sft_weight=0.5,
        ).loss
        for i in range(6)
    ]
    torch.testing.assert_close(torch.stack(parts).sum(), whole.loss)


def test_a_weight_of_zero_is_a_pair_that_is_not_there() -> None:
    tensors = pairs()
    weights = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    without = dpo([tensor[:5] for tensor in tensors], total_pairs=5)
    torch.testing.assert_close(dpo(tensors, pair_weights_B=weights, total_pairs=5).loss, without.loss)


def test_extreme_margins_stay_finite() -> None:
    far = torch.tensor([1e4, -1e4], requires_grad=True)
    zero = torch.zeros(2)
    for loss in ("sigmoid", "robust"):
        result = dpo([far, zero, zero, zero], loss=loss, beta=1.0, label_smoothing=0.1)
        (grad,) = torch.autograd.grad(result.loss, far)
        assert result.pair_loss_B.isfinite().all()
        assert grad.isfinite().all()


def test_sequence_logprobs_ignore_masked_positions_and_padding() -> None:
    logprobs = torch.tensor([[math.nan, -1.0, -2.0, -math.inf], [-0.5, math.nan, 7.0, 7.0]], requires_grad=True)
    mask = torch.tensor([[0, 1, 1, 0], [1, 0, 0, 0]])
    assert sequence_logprobs(logprobs, mask, average=False).tolist() == [-3.0, -0.5]
    averaged = sequence_logprobs(logprobs, mask, average=True)
    assert averaged.tolist() == [-1.5, -0.5]
    averaged.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [[0.0, 0.5, 0.5, 0.0], [1.0, 0.0, 0.0, 0.0]]


def test_a_completion_without_tokens_is_refused() -> None:
    with pytest.raises(DataError, match="row 1 of the pairs has no trained token"):
        sequence_logprobs(torch.zeros(2, 2), torch.tensor([[1, 0], [0, 0]]), average=False)


@pytest.mark.parametrize(
    "options",
    [
        {"beta": 0.0},
        {"beta": math.nan},
        {"label_smoothing": 0.6},
        {"label_smoothing": -0.1},
        {"sft_weight": 0.1},
        {"loss": "robust", "label_smoothing": 0.5},
        {"loss": "hinge", "label_smoothing": 0.1},
        {"loss": "ipo", "label_smoothing": 0.1},
    ],
)
def test_impossible_or_idle_numbers_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        dpo(pairs(), **options)  # type: ignore[arg-type]
