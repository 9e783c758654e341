"""Trajectories to groups: of one example each, by id with its type, and only those that can be compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nat_finetune.data.keys import example_key
from nat_finetune.data.trajectories import Credit, build_trajectory
from nat_finetune.interfaces import Target
from nat_finetune.types import Cause, Dropped, DropReason, Group, Rollout, Trajectory


def build_groups(rollouts: Iterable[Rollout], target: Target, credit: Credit) -> Iterator[Group | Dropped]:
    """Groups by example, first seen first, and what was left out.

    A rollout whose reward is unknown stays out. A group needs two rollouts to compare. A group in which nothing differs (equal
    rewards, and equal credit at each turn) has advantage 0 everywhere: it is dropped as `flat_group`.
    """
    by_example: dict[str, list[Trajectory]] = {}
    for rollout in rollouts:
        if rollout.failure is not None and rollout.failure.cause is Cause.INFRASTRUCTURE:
            yield Dropped(
                "rollout", DropReason.INFRASTRUCTURE_FAILURE, rollout.failure.message, rollout.example_id, rollout.rollout_id
            )
            continue
        if any(rollout.rewards.get(name) is None for name in target.reward_names):
            yield Dropped("rollout", DropReason.UNKNOWN_REWARD, "", rollout.example_id, rollout.rollout_id)
            continue
        for made in build_trajectory(rollout, target, credit):
            if isinstance(made, Trajectory):
                by_example.setdefault(example_key(rollout.example_id), []).append(made)
            else:
                yield made
    for trajectories in by_example.values():
        yield from _group(trajectories)


def _group(trajectories: list[Trajectory]) -> Iterator[Group | Dropped]:
    first = trajectories[0]
    if len(trajectories) < 2:
        yield Dropped("group", DropReason.TOO_FEW_ROLLOUTS, "", first.example_id, first.rollout_id)
    elif is_flat(trajectories):
        yield Dropped("group", DropReason.FLAT_GROUP, "", first.example_id)
    else:
        yield Group(first.example_id, tuple(trajectories))


def is_flat(trajectories: list[Trajectory]) -> bool:
    """Whether nothing differs: every reward is equal, and so is the credit of every turn index (max == min, exactly)."""
    rewards = [dict(trajectory.rewards) for trajectory in trajectories]
    if any(other != rewards[0] for other in rewards):
        return False
    by_turn: dict[int, set[float | None]] = {}
    for trajectory in trajectories:
        for segment in trajectory.segments:
            for turn in segment.turns:
                by_turn.setdefault(turn.index, set()).add(turn.credit)
    return all(len(credits) == 1 for credits in by_turn.values())
