"""Importance correction: off when sampler and trainer agree, no gradient, nothing at masked positions."""

import math

import pytest
import torch

from nat_finetune.algorithms.importance import CORRECTIONS, importance_correction
from nat_finetune.errors import ConfigError

OLD = torch.tensor([[-1.0, -0.5, -2.0], [-0.1, -0.2, -0.3]])
MASK = torch.tensor([[0, 1, 1], [1, 1, 0]])


@pytest.mark.parametrize("mode", CORRECTIONS)
def test_agreement_gives_weight_one_on_trained_tokens(mode: str) -> None:
    weights = importance_correction(OLD, OLD.clone(), MASK, mode=mode, low=0.5, high=2.0)
    assert weights.tolist() == MASK.tolist()


@pytest.mark.parametrize("mode", CORRECTIONS)
def test_masked_positions_and_padding_have_no_say(mode: str) -> None:
    sampler = OLD + torch.tensor([[0.0, 0.2, -0.1], [0.3, 0.1, 0.0]])
    noisy = torch.where(MASK.bool(), sampler, torch.nan)
    expected = importance_correction(OLD, sampler, MASK, mode=mode, low=0.5, high=3.0)
    assert torch.equal(importance_correction(OLD, noisy, MASK, mode=mode, low=0.5, high=3.0), expected)
    padded = [torch.nn.functional.pad(tensor, (0, 4), value=-7.0) for tensor in (OLD, sampler)]
    mask = torch.nn.functional.pad(MASK, (0, 4))
    longer = importance_correction(*padded, mask, mode=mode, low=0.5, high=3.0)
    assert torch.equal(longer[:, :3], expected)


@pytest.mark.parametrize("mode", CORRECTIONS)
def test_weights_carry_no_gradient(mode: str) -> None:
    old = OLD.clone().requires_grad_()
    assert not importance_correction(old, OLD, MASK, mode=mode, low=0.5, high=2.0).requires_grad


@pytest.mark.parametrize("bounds", [(-0.1, 1.0), (2.0, 1.0), (0.0, math.nan)])
def test_impossible_bounds_are_refused(bounds: tuple[float, float]) -> None:
    with pytest.raises(ConfigError, match="importance bounds"):
        importance_correction(OLD, OLD, MASK, mode="mask_tokens", low=bounds[0], high=bounds[1])


def test_truncation_keeps_what_masking_gives_up() -> None:
    sampler = OLD - torch.tensor([[0.0, 2.0, 0.1], [0.0, 0.0, 0.0]])
    truncated = importance_correction(OLD, sampler, MASK, mode="truncate_tokens", low=0.0, high=2.0)
    masked = importance_correction(OLD, sampler, MASK, mode="mask_tokens", low=0.0, high=2.0)
    assert (truncated[0, 1].item(), masked[0, 1].item()) == (2.0, 0.0)
    assert truncated[0, 2] == masked[0, 2]
