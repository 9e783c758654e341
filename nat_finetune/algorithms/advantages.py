"""Rewards made relative to the other rollouts of the same example.

Decisions, each pinned by a test, because sources differ:

* standard deviations are the sample's (divided by n - 1), computed in two passes in float64;
* a group is flat when its largest and smallest reward are equal (no tolerance): advantages exactly 0, also for
  rewards such as 0.7 whose mean does not round back to 0.7;
* a group of one known reward is flat: advantage 0;
* an unknown reward (NaN) is left out of every mean and deviation and gets advantage 0; infinity is an error;
* `eps` is added to the deviation; where the deviation is 0 the centred reward stays unscaled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from nat_finetune.errors import DataError

Baseline = Literal["mean", "leave_one_out"]
Scale = Literal["group", "batch", "none"]


@dataclass(frozen=True, slots=True)
class Advantages:
    """Advantages of a batch and what they were made from, all `[B]` in the batch's order."""

    advantages_B: Tensor
    """Float64; 0 where the group is flat or the reward unknown."""
    baseline_B: Tensor
    """What was subtracted; NaN where the reward is unknown."""
    std_B: Tensor
    """The deviation divided by (of the group, its others, or the batch); with scale `none` the group's, unused."""
    flat_B: Tensor
    """True where the group's known rewards are all equal, so that it carries no signal."""
    valid_B: Tensor
    """True where the reward is known."""


def group_advantages(
    rewards_B: Tensor,
    group_ids_B: Tensor,
    *,
    baseline: Baseline,
    scale: Scale,
    eps: float,
    allow_missing: bool = True,
) -> Advantages:
    """Advantages inside each group; groups are rows with equal id, in any order and of any size.

    `mean` with `group` is GRPO (arXiv:2402.03300 §4.1.2), with `none` Dr. GRPO (arXiv:2503.20783), with `batch` Lite
    PPO (arXiv:2508.08221); `leave_one_out` with `none` is RLOO (arXiv:2402.14740), with `group` NeMo RL's default,
    where both the mean and the deviation are those of the other rollouts. Raises DataError for an infinite reward,
    and for an unknown one unless `allow_missing`.

    >>> rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.7, 0.7])
    >>> group_advantages(rewards, torch.tensor([0, 0, 0, 0, 1, 1]), baseline="mean", scale="group", eps=0.0).advantages_B
    tensor([ 0.8660, -0.8660, -0.8660,  0.8660,  0.0000,  0.0000],
           dtype=torch.float64)
    """
    check_rewards(rewards_B, allow_missing=allow_missing)
    rewards_B = rewards_B.double()
    valid_B = ~rewards_B.isnan()
    baseline_B = torch.full_like(rewards_B, torch.nan)
    spread_B = torch.zeros_like(rewards_B)
    flat_B = torch.ones_like(valid_B)
    for members, known in _groups(group_ids_B, valid_B):
        if known.numel() == 0:
            continue
        rewards_G = rewards_B[known]
        flat_B[members] = rewards_G.max() == rewards_G.min()
        baseline_B[known], spread_B[known] = BASELINES[baseline](rewards_G)
    centred_B = torch.where(valid_B, rewards_B - baseline_B, 0.0)
    advantages_B, std_B = SCALES[scale](centred_B, spread_B, rewards_B[valid_B], eps)
    return Advantages(advantages_B, baseline_B, std_B, flat_B, valid_B)


def check_rewards(rewards: Tensor, *, allow_missing: bool) -> None:
    """Raise DataError naming the first reward that is infinite, or unknown (NaN) where that is not allowed.

    >>> check_rewards(torch.tensor([1.0, float("inf")]), allow_missing=True)
    Traceback (most recent call last):
    nat_finetune.errors.DataError: reward 1 is not finite: inf
    """
    bad = rewards.isinf() if allow_missing else ~rewards.isfinite()
    if bool(bad.any()):
        index = tuple(bad.nonzero()[0].tolist())
        where = index[0] if len(index) == 1 else index
        raise DataError(f"reward {where} is not finite: {rewards[index].item()}")


def mean_and_std(values_N: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and sample deviation over the last axis in two passes; equal values give themselves and exactly 0.

    >>> mean_and_std(torch.tensor([[0.7, 0.7, 0.7], [0.0, 1.0, 2.0]]).double())[1]
    tensor([0., 1.], dtype=torch.float64)
    """
    low, high = values_N.aminmax(dim=-1)
    mean = torch.where(low == high, high, values_N.mean(-1))  # the mean of ten 0.7 is not 0.7
    squares = (values_N - mean.unsqueeze(-1)).square().sum(-1)
    return mean, (squares / max(values_N.shape[-1] - 1, 1)).sqrt()


def _groups(group_ids_B: Tensor, valid_B: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Row numbers of each group, and of its members whose reward is known."""
    for group_id in torch.unique(group_ids_B):
        mine_B = group_ids_B == group_id
        yield mine_B.nonzero().squeeze(-1), (mine_B & valid_B).nonzero().squeeze(-1)


def _mean_baseline(rewards_G: Tensor) -> tuple[Tensor, Tensor]:
    mean, std = mean_and_std(rewards_G)
    return mean.expand_as(rewards_G), std.expand_as(rewards_G)


def _leave_one_out_baseline(rewards_G: Tensor) -> tuple[Tensor, Tensor]:
    size = rewards_G.numel()
    if size == 1:
        return rewards_G, torch.zeros_like(rewards_G)
    not_self = ~torch.eye(size, dtype=torch.bool, device=rewards_G.device)
    others_G_N = rewards_G.expand(size, size)[not_self].view(size, size - 1)
    return mean_and_std(others_G_N)


def divide_where_spread(centred_B: Tensor, std_B: Tensor, *, eps: float) -> Tensor:
    """`centred / (std + eps)`, and `centred` itself where std is 0 (never a division by rounding noise).

    >>> divide_where_spread(torch.tensor([1.0, 1.0]), torch.tensor([2.0, 0.0]), eps=0.0)
    tensor([0.5000, 1.0000])
    """
    return torch.where(std_B > 0, centred_B / torch.where(std_B > 0, std_B + eps, 1.0), centred_B)


def _scale_by_group(centred_B: Tensor, spread_B: Tensor, known_N: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return divide_where_spread(centred_B, spread_B, eps=eps), spread_B


def _scale_by_batch(centred_B: Tensor, spread_B: Tensor, known_N: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    std_B = mean_and_std(known_N)[1].expand_as(centred_B) if known_N.numel() else torch.zeros_like(centred_B)
    return divide_where_spread(centred_B, std_B, eps=eps), std_B


def _unscaled(centred_B: Tensor, spread_B: Tensor, known_N: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return centred_B, spread_B


BASELINES: Mapping[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = MappingProxyType(
    {"mean": _mean_baseline, "leave_one_out": _leave_one_out_baseline}
)
"""By name: known rewards of one group → what each is compared with, and the deviation that goes with it."""

SCALES: Mapping[str, Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]] = MappingProxyType(
    {"group": _scale_by_group, "batch": _scale_by_batch, "none": _unscaled}
)
"""By name: (centred rewards, group deviations, all known rewards, eps) → advantages and the deviation used."""
