"""How a loss per token becomes one number: always a weighted sum, with weights from counts of the whole optimiser step.

Averaging micro-batch by micro-batch is wrong as soon as they hold different numbers of tokens. So the counts (over all
micro-batches and ranks) are passed in, each micro-batch contributes `(weights_B_T * loss_B_T).sum()`, and the sum over
micro-batches and ranks is exact. A trainer whose framework averages gradients over ranks multiplies by their number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from nat_finetune.errors import DataError


@dataclass(frozen=True, slots=True)
class StepCounts:
    """What one optimiser step trains, over all its micro-batches and ranks; the normalisers."""

    tokens: float
    """Trained tokens (sum of the loss masks)."""
    sequences: float
    """Rows, also those without a trained token."""
    rollouts: float
    """Rollouts; a rollout is several rows when its context was rewritten midway."""
    max_length: int
    """The constant length of `constant_length`: the most tokens a sequence may train."""


def token_mean(loss_mask_B_T: Tensor, *, total_tokens: float) -> Tensor:
    """Weights under which every token counts the same (DAPO, arXiv:2503.14476 eq. 12).

    >>> token_mean(torch.tensor([[1, 1, 1], [0, 0, 1]]), total_tokens=4)
    tensor([[0.2500, 0.2500, 0.2500],
            [0.0000, 0.0000, 0.2500]])
    """
    return _divide(loss_mask_B_T, total_tokens, "tokens")


def sequence_mean(loss_mask_B_T: Tensor, *, total_sequences: float) -> Tensor:
    """Weights under which every row counts the same, however long (GRPO, arXiv:2402.03300 eq. 3).

    >>> sequence_mean(torch.tensor([[0, 1, 1], [0, 0, 1]]), total_sequences=2)
    tensor([[0.0000, 0.2500, 0.2500],
            [0.0000, 0.0000, 0.5000]])
    """
    return _divide(_share_of(loss_mask_B_T, loss_mask_B_T.sum(-1)), total_sequences, "sequences")


def rollout_mean(loss_mask_B_T: Tensor, rollout_tokens_B: Tensor, *, total_rollouts: float) -> Tensor:
    """Weights under which every rollout counts the same, however many rows and turns it has.

    `rollout_tokens_B` is the number of trained tokens of the whole rollout that each row belongs to (see
    `tokens_by_rollout`), also when its other rows are in another micro-batch. Two rows of one rollout, then another:

    >>> mask = torch.tensor([[1, 1, 1], [0, 0, 1], [0, 1, 1]])
    >>> rollout_mean(mask, torch.tensor([4, 4, 2]), total_rollouts=2)
    tensor([[0.1250, 0.1250, 0.1250],
            [0.0000, 0.0000, 0.1250],
            [0.0000, 0.2500, 0.2500]])
    """
    return _divide(_share_of(loss_mask_B_T, rollout_tokens_B), total_rollouts, "rollouts")


def constant_length(loss_mask_B_T: Tensor, *, total_sequences: float, max_length: int) -> Tensor:
    """Weights that don't depend on how long anything turned out (Dr. GRPO, arXiv:2503.20783 §3.2).

    >>> constant_length(torch.tensor([[0, 1, 1], [0, 0, 1]]), total_sequences=2, max_length=4)
    tensor([[0.0000, 0.1250, 0.1250],
            [0.0000, 0.0000, 0.1250]])
    """
    return _divide(loss_mask_B_T, total_sequences * max_length, "sequences times max_length")


REDUCTIONS: Mapping[str, Callable[[Tensor, Tensor, StepCounts], Tensor]] = MappingProxyType(
    {
        "token_mean": lambda mask_B_T, rollout_tokens_B, counts: token_mean(mask_B_T, total_tokens=counts.tokens),
        "sequence_mean": lambda mask_B_T, rollout_tokens_B, counts: sequence_mean(mask_B_T, total_sequences=counts.sequences),
        "rollout_mean": lambda mask_B_T, rollout_tokens_B, counts: rollout_mean(
            mask_B_T, rollout_tokens_B, total_rollouts=counts.rollouts
        ),
        "constant_length": lambda mask_B_T, rollout_tokens_B, counts: constant_length(
            mask_B_T, total_sequences=counts.sequences, max_length=counts.max_length
        ),
    }
)
"""By the config's name: `(loss_mask_B_T, rollout_tokens_B, counts) → weights_B_T`."""


def tokens_by_rollout(loss_mask_B_T: Tensor, rollout_ids_B: Tensor) -> Tensor:
    """Trained tokens of the rollout that each row belongs to, `[B]`; needs all rows of the optimiser step.

    >>> tokens_by_rollout(torch.tensor([[1, 1, 1], [0, 1, 1], [0, 0, 1]]), torch.tensor([7, 3, 7]))
    tensor([4, 2, 4])
    """
    _, inverse_B = torch.unique(rollout_ids_B, return_inverse=True)
    tokens_B = loss_mask_B_T.sum(-1).long()
    return torch.zeros_like(tokens_B).index_add(0, inverse_B, tokens_B)[inverse_B]


def _share_of(loss_mask_B_T: Tensor, tokens_B: Tensor) -> Tensor:
    # A row without trained tokens has a mask of zeros: dividing it by 1 keeps it 0 instead of NaN.
    return loss_mask_B_T / tokens_B.clamp(min=1).unsqueeze(-1)


def _divide(share_B_T: Tensor, total: float, what: str) -> Tensor:
    if not total > 0:
        raise DataError(f"a loss can't be averaged over {total} {what}; an optimiser step needs something to train")
    return share_B_T / total
