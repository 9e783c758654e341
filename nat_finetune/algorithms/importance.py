"""Correction for a sampler whose log-probabilities are not the trainer's (another kernel, precision, or older weights).

A token's loss is multiplied by a weight made from exp(old_logprobs - sampler_logprobs), both of the same token: what the
trainer thought of it at the start of the update against what the engine reported. Weights carry no gradient. `truncate`
bounds the weight and keeps every token; `mask` gives up tokens (or sequences) that are outside the bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from nat_finetune.errors import ConfigError

Correction = Callable[[Tensor, Tensor, float, float], Tensor]


def truncate_tokens(log_weights_B_T: Tensor, loss_mask_B_T: Tensor, low: float, high: float) -> Tensor:
    """Each token's weight held between `low` and `high` (truncated importance sampling, "TIS").

    >>> truncate_tokens(torch.tensor([[0.25, 8.0]]).log(), torch.ones(1, 2), 0.0, 2.0)
    tensor([[0.2500, 2.0000]])
    """
    return log_weights_B_T.exp().clamp(low, high)


def mask_tokens(log_weights_B_T: Tensor, loss_mask_B_T: Tensor, low: float, high: float) -> Tensor:
    """Each token's weight, 0 outside the bounds ("IcePop").

    >>> mask_tokens(torch.tensor([[0.25, 1.5, 8.0]]).log(), torch.ones(1, 3), 0.5, 5.0)
    tensor([[0.0000, 1.5000, 0.0000]])
    """
    return _zero_outside(log_weights_B_T.exp(), log_weights_B_T.exp(), low, high)


def truncate_sequences(log_weights_B_T: Tensor, loss_mask_B_T: Tensor, low: float, high: float) -> Tensor:
    """The weight of the whole sequence (a product over its tokens) for each of its tokens, held within the bounds.

    >>> truncate_sequences(torch.tensor([[2.0, 4.0]]).log(), torch.ones(1, 2), 0.0, 3.0)
    tensor([[3., 3.]])
    """
    return log_weights_B_T.sum(-1, keepdim=True).exp().clamp(low, high).expand_as(log_weights_B_T)


def mask_sequences(log_weights_B_T: Tensor, loss_mask_B_T: Tensor, low: float, high: float) -> Tensor:
    """The weight of the whole sequence for each of its tokens, 0 when it is outside the bounds (TRL's default).

    >>> mask_sequences(torch.tensor([[2.0, 1.0], [2.0, 4.0]]).log(), torch.ones(2, 2), 0.0, 3.0)
    tensor([[2., 2.],
            [0., 0.]])
    """
    weights_B_1 = log_weights_B_T.sum(-1, keepdim=True).exp()
    return _zero_outside(weights_B_1, weights_B_1, low, high).expand_as(log_weights_B_T)


def mask_sequences_by_mean(log_weights_B_T: Tensor, loss_mask_B_T: Tensor, low: float, high: float) -> Tensor:
    """Token weights, all 0 in a sequence whose geometric mean weight is outside the bounds (NeMo RL's `seq-mask-tis`).

    >>> mask_sequences_by_mean(torch.tensor([[0.5, 2.0], [2.0, 2.0]]).log(), torch.ones(2, 2), 0.9, 1.15)
    tensor([[0.5000, 2.0000],
            [0.0000, 0.0000]])
    """
    mean_B_1 = (log_weights_B_T.sum(-1) / loss_mask_B_T.sum(-1).clamp(min=1)).exp().unsqueeze(-1)
    return _zero_outside(log_weights_B_T.exp(), mean_B_1, low, high)


CORRECTIONS: Mapping[str, Correction] = MappingProxyType(
    {
        "truncate_tokens": truncate_tokens,
        "mask_tokens": mask_tokens,
        "truncate_sequences": truncate_sequences,
        "mask_sequences": mask_sequences,
        "mask_sequences_by_mean": mask_sequences_by_mean,
    }
)
"""By the config's name; `tis` and `icepop` are the first two."""


def importance_correction(
    old_logprobs_B_T: Tensor,
    sampler_logprobs_B_T: Tensor,
    loss_mask_B_T: Tensor,
    *,
    mode: str,
    low: float,
    high: float,
) -> Tensor:
    """Weight for each token's loss, `[B, T]`, without gradient; 0 where the loss mask is.

    Raises ConfigError unless 0 <= low <= high.

    >>> importance_correction(torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.5, -3.0]]), torch.tensor([[1, 1]]),
    ...                       mode="truncate_tokens", low=0.0, high=2.0)
    tensor([[1.6487, 2.0000]])
    """
    if not 0 <= low <= high:
        raise ConfigError(f"importance bounds need 0 <= low <= high, not low={low}, high={high}")
    mask_B_T = loss_mask_B_T.bool()
    log_weights_B_T = torch.where(mask_B_T, old_logprobs_B_T - sampler_logprobs_B_T, 0.0).detach()
    return torch.where(mask_B_T, CORRECTIONS[mode](log_weights_B_T, loss_mask_B_T, low, high), 0.0)


def _zero_outside(weights: Tensor, tested: Tensor, low: float, high: float) -> Tensor:
    return torch.where((tested >= low) & (tested <= high), weights, 0.0)
