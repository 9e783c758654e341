"""GDPO: several rewards, each made relative inside its group before they are added (arXiv:2601.05242).

    1  A_k = (reward_k - group mean) / (group std + eps_group)          each reward k by itself
    2  A   = sum_k weight_k * A_k                                       weights set priorities, not ranges
    3  A   = (A - batch mean) / (batch std + eps_batch)                 over all rows of the step, all ranks

Normalising the sum instead (GRPO) makes (1, 1) against (0, 0) look exactly like (0, 1) against (0, 0), and lets the reward
with the widest range decide. Step 3 must see the gathered rewards of the whole step. With one reward the same steps run.

Unknown components (NaN) are skipped; a row whose components are all unknown gets 0 and is left out of step 3. Flat
components give 0, and rows of flat groups (0) do take part in step 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nat_finetune.algorithms.advantages import (
    Baseline,
    Scale,
    check_rewards,
    divide_where_spread,
    group_advantages,
    mean_and_std,
)
from nat_finetune.errors import ConfigError

TOKEN_WHITENING_EPS = 1e-8
"""Added to the variance (not the deviation) by the authors' token-weighted whitening."""


@dataclass(frozen=True, slots=True)
class GdpoAdvantages:
    """The three steps of GDPO, so that a report can say which reward moved what."""

    advantages_B: Tensor
    """After step 3, float64; 0 where no component is known."""
    combined_B: Tensor
    """After step 2."""
    per_reward_B_K: Tensor
    """After step 1, before weights; 0 where a component is flat or unknown."""
    flat_B_K: Tensor
    """True where the group is flat in that component; a group is without signal only if all of its row is True."""
    valid_B: Tensor
    """True where at least one component is known."""


def gdpo_advantages(
    rewards_B_K: Tensor,
    group_ids_B: Tensor,
    *,
    weights_K: Sequence[float],
    eps_group: float,
    eps_batch: float,
    baseline: Baseline = "mean",
    scale: Scale = "group",
    token_counts_B: Tensor | None = None,
    allow_missing: bool = True,
) -> GdpoAdvantages:
    """GDPO advantages of a whole step; `weights_K` in the order of the columns.

    `scale` is that of step 1; any but `group` is an ablation. TRL uses eps 1e-4 twice; NeMo RL 1e-6 and 0.
    With `token_counts_B` step 3 weights each row by its number of tokens
    (the authors' verl version, which then ignores `eps_batch`: pass 0). Raises ConfigError when the weights don't
    match the rewards, DataError as `group_advantages`.

    The paper's figure: (0, 0) against (0, 1), and (0, 0) against (1, 1); GRPO on the sum gives ±0.7071 for both.

    >>> rewards = torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 0.0], [1.0, 1.0]])
    >>> result = gdpo_advantages(rewards, torch.tensor([0, 0, 1, 1]), weights_K=[1, 1], eps_group=0, eps_batch=0)
    >>> result.combined_B
    tensor([-0.7071,  0.7071, -1.4142,  1.4142], dtype=torch.float64)
    """
    if len(weights_K) != rewards_B_K.shape[1]:
        raise ConfigError(f"{len(weights_K)} reward weights for {rewards_B_K.shape[1]} rewards; give each reward one")
    if token_counts_B is not None and eps_batch != 0:
        raise ConfigError(f"eps_batch={eps_batch} has no place in token-weighted whitening; it must be 0 there")
    check_rewards(rewards_B_K, allow_missing=allow_missing)
    columns = [
        group_advantages(rewards_B, group_ids_B, baseline=baseline, scale=scale, eps=eps_group)
        for rewards_B in rewards_B_K.unbind(1)
    ]
    per_reward_B_K = torch.stack([column.advantages_B for column in columns], dim=1)
    valid_B = torch.stack([column.valid_B for column in columns], dim=1).any(1)
    combined_B = per_reward_B_K @ torch.as_tensor(weights_K, dtype=torch.float64, device=per_reward_B_K.device)
    advantages_B = torch.zeros_like(combined_B)
    if bool(valid_B.any()):
        known_N = combined_B[valid_B]
        advantages_B[valid_B] = (
            normalise_samples(known_N, eps=eps_batch)
            if token_counts_B is None
            else whiten_tokens(known_N, token_counts_B[valid_B])
        )
    return GdpoAdvantages(
        advantages_B=advantages_B,
        combined_B=combined_B,
        per_reward_B_K=per_reward_B_K,
        flat_B_K=torch.stack([column.flat_B for column in columns], dim=1),
        valid_B=valid_B,
    )


def normalise_samples(values_N: Tensor, *, eps: float) -> Tensor:
    """Mean 0 and deviation 1 over rows; equal values give exactly 0.

    >>> normalise_samples(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64), eps=0.0)
    tensor([-1.,  0.,  1.], dtype=torch.float64)
    """
    mean, std = mean_and_std(values_N)
    return divide_where_spread(values_N - mean, std, eps=eps)


def whiten_tokens(values_N: Tensor, token_counts_N: Tensor) -> Tensor:
    """Mean 0 and variance 1 over *tokens*: each row counts as often as it has tokens; equal values give exactly 0.

    Rows of 1 and 3 tokens: mean 3/4, sample variance over the four tokens 1/4.

    >>> whiten_tokens(torch.tensor([0.0, 1.0], dtype=torch.float64), torch.tensor([1, 3]))
    tensor([-1.5000,  0.5000], dtype=torch.float64)
    """
    if bool(values_N.max() == values_N.min()):
        return torch.zeros_like(values_N)
    tokens_N = token_counts_N.double()
    total = tokens_N.sum()
    centred_N = values_N - (tokens_N * values_N).sum() / total
    variance = (tokens_N * centred_N.square()).sum() / (total - 1)
    return centred_N * (variance + TOKEN_WHITENING_EPS).rsqrt()


def condition_reward(rewards_B_K: Tensor, *, reward: int, requires: int, at_least: float, otherwise: float) -> Tensor:
    """Pay column `reward` only where column `requires` reaches `at_least`, else `otherwise`; before step 1.

    An unknown `requires` makes the reward unknown: it can't be said whether it was earned. A short answer (column 1)
    that is wrong (column 0):

    >>> condition_reward(torch.tensor([[1.0, 0.9], [0.0, 0.9]]), reward=1, requires=0, at_least=1.0, otherwise=0.0)
    tensor([[1.0000, 0.9000],
            [0.0000, 0.0000]])
    """
    gate_B = rewards_B_K[:, requires]
    paid_B = torch.where(gate_B >= at_least, rewards_B_K[:, reward], otherwise)
    conditioned_B_K = rewards_B_K.clone()
    conditioned_B_K[:, reward] = torch.where(gate_B.isnan(), torch.nan, paid_B)
    return conditioned_B_K
