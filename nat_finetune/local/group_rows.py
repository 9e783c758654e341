"""Groups of trajectories to rows: tokens, sampler's logprobs and advantages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nat_finetune.algorithms.presets import Preset
from nat_finetune.data.batches import Rows
from nat_finetune.data.sharing import Ints
from nat_finetune.errors import ConfigError, Problem
from nat_finetune.local.group_advantages import advantages_of_turns
from nat_finetune.local.scores import SAMPLER, TEMPERATURE
from nat_finetune.types import Dropped, DropReason, Group, RewardTerm, Segment, Trajectory, Turn

ADVANTAGES = "advantages"


@dataclass(frozen=True, slots=True)
class GroupRows:
    """The trainable content of a collection of groups."""

    rows: Rows
    """One a segment, with the columns `temperature`, `sampler_logprobs` and `advantages`."""
    items: list[list[tuple[int, ...]]]
    """For each trajectory its segments' rows, each a unit of its own."""
    rollout_tokens: Ints
    """For each row the trained tokens of its whole rollout."""
    current: NDArray[np.bool_]
    """For each row whether the weights that are about to be trained sampled it."""
    dropped: list[Dropped]
    zero_advantage_tokens: int
    reward_shares: dict[str, float]
    """See `group_advantages.TurnAdvantages.shares`."""

    @property
    def trained_tokens(self) -> int:
        """Tokens under the loss masks."""
        return int(self.rows.loss_mask_N.sum())


def encode_groups(
    groups: Sequence[Group],
    preset: Preset,
    *,
    rewards: Sequence[RewardTerm],
    length_limit: int | None,
    max_length: int | None,
    policy_version: int,
) -> GroupRows:
    """Rows of all groups; advantages are relative to whole groups, also where a member is masked or too long.

    Args:
        groups: trajectories with sampler's logprobs.
        preset: how rewards become advantages.
        rewards: what is trained, in the order of the config.
        length_limit: limit of the overlong penalty, in sampled tokens.
        max_length: trajectories with a longer segment are dropped; None keeps all.
        policy_version: of the weights that are about to be trained.

    Raises:
        ConfigError: a token was sampled greedily.
        DataError: a trajectory lacks the reward's name.
    """
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    group_ids = [index for index, group in enumerate(groups) for _ in group.trajectories]
    advantages = advantages_of_turns(trajectories, group_ids, preset, terms=rewards, length_limit=length_limit)
    kept, dropped = [], []
    for trajectory, by_turn in zip(trajectories, advantages.by_turn, strict=True):
        if not trajectory.trained:
            dropped.append(_masked(trajectory))
            continue
        longest = max(len(segment.token_ids) for segment in trajectory.segments)
        if max_length is not None and longest > max_length:
            dropped.append(_too_long(trajectory, longest, max_length))
        else:
            kept.append((trajectory, by_turn))
    return _rows(kept, dropped, policy_version, advantages.shares)


def _rows(
    kept: Sequence[tuple[Trajectory, list[list[float]]]],
    dropped: list[Dropped],
    policy_version: int,
    shares: dict[str, float],
) -> GroupRows:
    segments: list[Segment] = []
    advantages: list[NDArray[np.float32]] = []
    temperatures: list[NDArray[np.float32]] = []
    items: list[list[tuple[int, ...]]] = []
    rollout_tokens, current = [], []
    for trajectory, by_segment in kept:
        items.append([])
        for segment, by_turn in zip(trajectory.segments, by_segment, strict=True):
            if not segment.turns:
                continue
            items[-1].append((len(segments),))
            segments.append(segment)
            advantages.append(_spread(segment, by_turn))
            temperatures.append(_spread(segment, [_temperature(turn, trajectory) for turn in segment.turns]))
            rollout_tokens.append(trajectory.trainable_tokens)
            current.append(trajectory.policy_version == policy_version)
    rows = Rows.of([segment.token_ids for segment in segments], [segment.loss_mask for segment in segments])
    rows.add_column(SAMPLER, [segment.logprobs for segment in segments])
    rows.add_column(ADVANTAGES, advantages)
    rows.add_column(TEMPERATURE, temperatures)
    zero = int((rows.loss_mask_N & (rows.columns[ADVANTAGES] == 0)).sum())
    return GroupRows(rows, items, np.array(rollout_tokens, np.int64), np.array(current, np.bool_), dropped, zero, shares)


def _spread(segment: Segment, by_turn: Sequence[float]) -> NDArray[np.float32]:
    """Give each turn's tokens its value; 0 elsewhere."""
    values = np.zeros(len(segment.token_ids), np.float32)
    for turn, value in zip(segment.turns, by_turn, strict=True):
        values[turn.start : turn.end] = value
    return values


def _temperature(turn: Turn, trajectory: Trajectory) -> float:
    if turn.temperature <= 0:
        raise ConfigError(
            Problem(
                f"rollout {trajectory.rollout_id} was sampled at temperature 0: all rollouts of an example are the same, and "
                "greedy samples have no gradient",
                key="llms",
                hint="set the target model's temperature above 0; 1.0 is usual",
            )
        )
    return turn.temperature


def _masked(trajectory: Trajectory) -> Dropped:
    return Dropped("trajectory", DropReason.TRUNCATED, "compared, not trained", trajectory.example_id, trajectory.rollout_id)


def _too_long(trajectory: Trajectory, length: int, limit: int) -> Dropped:
    return Dropped(
        what="trajectory",
        reason=DropReason.TOO_LONG,
        detail=f"{length} tokens, max_length is {limit}",
        example_id=trajectory.example_id,
        rollout_id=trajectory.rollout_id,
    )
