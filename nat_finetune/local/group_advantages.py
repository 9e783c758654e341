"""Rewards of whole groups to an advantage for each turn of each rollout, and how much each reward had to do with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nat_finetune.algorithms.advantages import divide_where_spread, group_advantages
from nat_finetune.algorithms.credit import turn_advantages
from nat_finetune.algorithms.gdpo import gdpo_advantages, normalise_samples
from nat_finetune.algorithms.overlong import soft_overlong_penalty
from nat_finetune.algorithms.presets import Preset
from nat_finetune.data.rewards import weighted_sum
from nat_finetune.errors import DataError
from nat_finetune.local.ranks import gather_rows, rank
from nat_finetune.types import RewardTerm, Trajectory, Turn

OVERLONG = "overlong_penalty"
_RANK = 2**32
"""Groups of different ranks are different groups, though each rank counts its own from 0."""


@dataclass(frozen=True, slots=True)
class TurnAdvantages:
    """What the turns of an update are worth."""

    by_turn: list[list[list[float]]]
    """Of each turn of each segment of each trajectory."""
    shares: dict[str, float]
    """By reward: its share of the advantages, that is of the sum of the sizes of what each reward adds to each rollout's; they
    sum to 1. Empty for one reward, where no advantage is, and under per-turn credit."""


@dataclass(frozen=True, slots=True)
class _Outcomes:
    """Advantages of whole rollouts, before any normalisation over the batch."""

    values_B: Tensor
    known_B: Tensor
    parts_B_K: Tensor
    """What each reward adds; these sum to `values_B`."""


def advantages_of_turns(
    trajectories: Sequence[Trajectory],
    group_ids: Sequence[int],
    preset: Preset,
    *,
    terms: Sequence[RewardTerm],
    length_limit: int | None,
) -> TurnAdvantages:
    """An advantage for each turn; what is normalised over the batch is normalised over all rows given here, of all ranks.

    The batch is what the builder and the filters left: a flat group, which would bring zeros, is not among it.

    Raises:
        DataError: a trajectory lacks a reward's name.
    """
    names, rewards_B_K = _rewards(trajectories, preset, terms, length_limit)
    gathered_B_K, mine = gather_rows(rewards_B_K)
    ids_B, _ = gather_rows(torch.tensor(group_ids) + rank() * _RANK)
    outcomes = _outcomes(gathered_B_K, ids_B, preset, [*(term.weight for term in terms), *[1.0] * (len(names) - len(terms))])
    turns = [(b, turn) for b, t in enumerate(trajectories) for segment in t.segments for turn in segment.turns]
    rows_N = torch.tensor([b for b, _ in turns])
    if any(turn.credit is not None for _, turn in turns):
        credits_N = torch.tensor([math.nan if turn.credit is None else turn.credit for _, turn in turns], dtype=torch.float64)
        of_turns = _of_turns(
            credits_N, torch.tensor([_cell(turn) for _, turn in turns]), rows_N + mine.start, ids_B, outcomes, preset
        )
        shares = {}
    else:
        of_turns = _normalised(outcomes.values_B, outcomes.known_B, preset)[mine][rows_N]
        shares = _shares(names, outcomes)
    values = iter(of_turns.tolist())
    return TurnAdvantages([[[next(values) for _ in segment.turns] for segment in t.segments] for t in trajectories], shares)


def _rewards(
    trajectories: Sequence[Trajectory], preset: Preset, terms: Sequence[RewardTerm], length_limit: int | None
) -> tuple[list[str], Tensor]:
    """Names and values of what adds up, `[B, K]`: the rewards, and the overlong penalty where there is one."""
    names = [term.name for term in terms]
    rows = [[_reward(trajectory, name) for name in names] for trajectory in trajectories]
    rewards_B_K = torch.tensor(rows, dtype=torch.float64).reshape(len(rows), len(names))
    if preset.overlong_buffer_share is None or length_limit is None:
        return names, rewards_B_K
    penalty_B = soft_overlong_penalty(
        torch.tensor([trajectory.trainable_tokens for trajectory in trajectories]),
        max_length=length_limit,
        buffer=max(1, round(preset.overlong_buffer_share * length_limit)),
        penalty=preset.overlong_penalty,
    )
    return [*names, OVERLONG], torch.cat([rewards_B_K, penalty_B[:, None]], dim=1)


def _outcomes(rewards_B_K: Tensor, ids_B: Tensor, preset: Preset, weights_K: Sequence[float]) -> _Outcomes:
    if preset.advantage == "gdpo":
        apart = gdpo_advantages(
            rewards_B_K,
            ids_B,
            weights_K=weights_K,
            eps_group=preset.eps,
            eps_batch=preset.eps,
            baseline=preset.baseline,
            scale=preset.scale,
        )
        parts_B_K = apart.per_reward_B_K * torch.tensor(weights_K, dtype=torch.float64)
        return _Outcomes(apart.combined_B, apart.valid_B, parts_B_K)
    sums_B = _sums(rewards_B_K, weights_K)
    together = group_advantages(sums_B, ids_B, baseline=preset.baseline, scale=preset.scale, eps=preset.eps)
    parts = [
        _part(rewards_B, weight, ids_B, sums_B.isnan(), together.std_B, preset)
        for rewards_B, weight in zip(rewards_B_K.unbind(1), weights_K, strict=True)
    ]
    return _Outcomes(together.advantages_B, together.valid_B, torch.stack(parts, dim=1))


def _sums(rewards_B_K: Tensor, weights_K: Sequence[float]) -> Tensor:
    """Weighted sums as the builder made them when it looked for flat groups; NaN where a reward is unknown."""
    terms = [RewardTerm(str(index), weight) for index, weight in enumerate(weights_K)]
    rows = [{term.name: value for term, value in zip(terms, row, strict=True)} for row in rewards_B_K.tolist()]
    sums = [weighted_sum(row, terms) for row in rows]
    return torch.tensor([math.nan if value is None else value for value in sums], dtype=torch.float64)


def _part(rewards_B: Tensor, weight: float, ids_B: Tensor, unknown_B: Tensor, std_B: Tensor, preset: Preset) -> Tensor:
    """What one reward adds to the advantages of the weighted sum."""
    known_B = torch.where(unknown_B, torch.nan, rewards_B)
    centred_B = weight * group_advantages(known_B, ids_B, baseline=preset.baseline, scale="none", eps=0.0).advantages_B
    return centred_B if preset.scale == "none" else divide_where_spread(centred_B, std_B, eps=preset.eps)


def _of_turns(credits_N: Tensor, cells_N: Tensor, rows_N: Tensor, ids_B: Tensor, outcomes: _Outcomes, preset: Preset) -> Tensor:
    """Advantages of turns among the same turns of others; the outcome's where a turn has none of its own."""
    credits_N, mine = gather_rows(credits_N)
    cells_N, _ = gather_rows(cells_N)
    rows_N, _ = gather_rows(rows_N)
    values_N = turn_advantages(
        credits_N,
        ids_B[rows_N],
        cells_N,
        outcomes.values_B[rows_N],
        baseline=preset.baseline,
        scale=preset.scale,
        eps=preset.eps,
    )
    return _normalised(values_N, ~credits_N.isnan() | outcomes.known_B[rows_N], preset)[mine]


def _normalised(values_N: Tensor, known_N: Tensor, preset: Preset) -> Tensor:
    """Mean 0 and deviation 1 over what is known, where the preset wants it; 0 stays for the unknown."""
    if not preset.batch_norm or not bool(known_N.any()):
        return values_N
    normalised_N = torch.zeros_like(values_N)
    normalised_N[known_N] = normalise_samples(values_N[known_N], eps=preset.eps)
    return normalised_N


def _shares(names: Sequence[str], outcomes: _Outcomes) -> dict[str, float]:
    sizes_K = outcomes.parts_B_K.abs().sum(0)
    if len(names) < 2 or not bool(sizes_K.sum() > 0):
        return {}
    return dict(zip(names, (sizes_K / sizes_K.sum()).tolist(), strict=True))


def _cell(turn: Turn) -> int:
    """A number for what the turn is compared with: indices are below 0, so that no state meets one."""
    return -1 - turn.index if turn.state is None else turn.state


def _reward(trajectory: Trajectory, name: str) -> float:
    if name not in trajectory.rewards:
        raise DataError(
            f"rollout {trajectory.rollout_id} has no reward {name!r}; it has {sorted(trajectory.rewards) or 'none'}"
        )
    value = trajectory.rewards[name]
    return math.nan if value is None else value
