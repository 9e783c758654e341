"""Credit for single turns, where steps of a rollout earn rewards of their own.

Turns of a whole batch are rows here (`_N`), each with the group of its example and the cell in which it is compared: the
turn's index, or a number for the state it was in. A turn is compared with turns of the same cell of other rollouts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nat_finetune.algorithms.advantages import Baseline, Scale, group_advantages
from nat_finetune.errors import ConfigError


def discounted_returns(step_rewards_S: Tensor, *, discount: float) -> Tensor:
    """What each turn of one rollout led to: its reward plus the discounted rewards after it, `[S]`, float64.

    An unknown step reward (NaN) makes the return of that turn and of all before it unknown, of those after it not.

    >>> discounted_returns(torch.tensor([0.0, 0.0, 1.0]), discount=0.5)
    tensor([0.2500, 0.5000, 1.0000], dtype=torch.float64)
    """
    if not 0 <= discount <= 1:
        raise ConfigError(f"discount must be from 0 to 1, not {discount}")
    returns_S = step_rewards_S.double().clone()
    for turn in range(returns_S.numel() - 2, -1, -1):
        # Discount 0 means "only this turn": 0 * NaN would carry an unknown later reward in all the same.
        returns_S[turn] += discount * returns_S[turn + 1] if discount > 0 else 0.0
    return returns_S


def turn_advantages(
    returns_N: Tensor,
    group_ids_N: Tensor,
    cells_N: Tensor,
    outcome_advantages_N: Tensor,
    *,
    baseline: Baseline,
    scale: Scale,
    eps: float,
) -> Tensor:
    """Advantage of each turn among turns of its cell in its group, `[N]`, float64.

    Where a cell holds fewer than two known returns there is nothing to compare with, and a turn whose own return is
    unknown can't be compared: these turns take `outcome_advantages_N`, the advantage of their rollout's outcome.

    Two rollouts of one example; only the first reaches a second turn:

    >>> turn_advantages(torch.tensor([1.0, 0.5, 0.0]), torch.tensor([0, 0, 0]), torch.tensor([0, 1, 0]),
    ...                 torch.tensor([0.7, 0.7, -0.7]).double(), baseline="mean", scale="none", eps=0.0)
    tensor([ 0.5000,  0.7000, -0.5000], dtype=torch.float64)
    """
    _, cell_ids_N = torch.unique(torch.stack([group_ids_N, cells_N]), dim=1, return_inverse=True)
    inside = group_advantages(returns_N, cell_ids_N, baseline=baseline, scale=scale, eps=eps)
    known_by_cell = torch.bincount(cell_ids_N, weights=inside.valid_B.double())
    comparable_N = inside.valid_B & (known_by_cell[cell_ids_N] >= 2)
    return torch.where(comparable_N, inside.advantages_B, outcome_advantages_N.double())
