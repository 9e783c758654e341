"""Trajectories to groups: of one example each, by id with its type, and only those that can be compared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from nat_finetune.data.keys import example_key
from nat_finetune.data.trajectories import Credit, build_trajectory
from nat_finetune.types import Cause, Dropped, DropReason, ExampleId, Group, Rollout, Target, Trajectory


def build_groups(rollouts: Iterable[Rollout], target: Target, credit: Credit) -> Iterator[Group | Dropped]:
    """Groups by example, first seen first, and what was left out.

    A rollout whose reward is unknown stays out. A group needs two rollouts to compare. A group in which nothing differs (equal
    rewards, and equal credit at each turn) has advantage 0 everywhere: it is dropped as `flat_group`.
    """
    by_example: dict[str, tuple[ExampleId, list[Trajectory]]] = {}
    for rollout in rollouts:
        _, trajectories = by_example.setdefault(example_key(rollout.example_id), (rollout.example_id, []))
        unusable = _unusable(rollout, target)
        if unusable is not None:
            yield unusable
            continue
        for made in build_trajectory(rollout, target, credit):
            if isinstance(made, Trajectory):
                trajectories.append(made)
            else:
                yield made
    for example_id, trajectories in by_example.values():
        yield _group(example_id, trajectories)


def _unusable(rollout: Rollout, target: Target) -> Dropped | None:
    """Why nothing of a rollout can be compared with others."""
    failure = rollout.failure
    if failure is not None and failure.cause is Cause.INFRASTRUCTURE:
        reason, detail = DropReason.INFRASTRUCTURE_FAILURE, failure.message
    elif unknown := [name for name in target.reward_names if not _is_known(rollout.rewards.get(name))]:
        reason, detail = DropReason.UNKNOWN_REWARD, ", ".join(unknown)
    else:
        return None
    return Dropped("rollout", reason, detail, rollout.example_id, rollout.rollout_id)


def _is_known(reward: float | None) -> bool:
    return reward is not None and math.isfinite(reward)


def _group(example_id: ExampleId, trajectories: Sequence[Trajectory]) -> Group | Dropped:
    if len(trajectories) < 2:
        return Dropped("group", DropReason.TOO_FEW_ROLLOUTS, f"{len(trajectories)} usable", example_id)
    if is_flat(trajectories):
        return Dropped("group", DropReason.FLAT_GROUP, "", example_id)
    return Group(example_id, tuple(trajectories))


def is_flat(trajectories: Sequence[Trajectory]) -> bool:
    """Whether nothing differs: every reward is equal, and so is the known credit of every turn index (max == min, exactly)."""
    rewards = [dict(trajectory.rewards) for trajectory in trajectories]
    if any(other != rewards[0] for other in rewards):
        return False
    by_turn: dict[int, set[float]] = {}
    for trajectory in trajectories:
        for segment in trajectory.segments:
            for turn in segment.turns:
                if turn.credit is not None:  # without credit the outcome pays, and that is equal
                    by_turn.setdefault(turn.index, set()).add(turn.credit)
    return all(len(credits) == 1 for credits in by_turn.values())
