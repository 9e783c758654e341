"""Trajectories to groups: of one example each, by id with its type, and only those that can be compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from nat_finetune.data.keys import example_key
from nat_finetune.data.rewards import paid_rewards, spread, unknown_rewards
from nat_finetune.data.trajectories import Credit, build_trajectory
from nat_finetune.types import Cause, Dropped, DropReason, ExampleId, Group, Rollout, Target, Trajectory


def build_groups(rollouts: Iterable[Rollout], target: Target, credit: Credit) -> Iterator[Group | Dropped]:
    """Groups by example, first seen first, and what was left out.

    A rollout whose reward is unknown stays out; of rewards that are compared apart (GDPO) one known is enough. A group needs
    two rollouts to compare. A group in which nothing differs (equal rewards, and equal credit at each turn) has advantage 0
    everywhere: it is dropped as `flat_group`.
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
        yield _group(example_id, trajectories, target)


def _unusable(rollout: Rollout, target: Target) -> Dropped | None:
    """Why nothing of a rollout can be compared with others."""
    failure = rollout.failure
    if failure is not None and failure.cause is Cause.INFRASTRUCTURE:
        reason, detail = DropReason.INFRASTRUCTURE_FAILURE, failure.message
    elif unknown := unknown_rewards(paid_rewards(rollout.rewards, target.rewards), target):
        reason, detail = DropReason.UNKNOWN_REWARD, ", ".join(unknown)
    else:
        return None
    return Dropped("rollout", reason, detail, rollout.example_id, rollout.rollout_id)


def _group(example_id: ExampleId, trajectories: Sequence[Trajectory], target: Target) -> Group | Dropped:
    if len(trajectories) < 2:
        return Dropped("group", DropReason.TOO_FEW_ROLLOUTS, f"{len(trajectories)} usable", example_id)
    if not any(trajectory.trained for trajectory in trajectories):
        return Dropped("group", DropReason.TRUNCATED, "every rollout", example_id)
    if is_flat(trajectories, target):
        return Dropped("group", DropReason.FLAT_GROUP, "", example_id)
    return Group(example_id, tuple(trajectories))


def comparison_warnings(dropped: Iterable[Dropped]) -> list[str]:
    """What groups that could not be made say of the workflow or the config; no figures, so that it is said once."""
    if any(drop.reason is DropReason.TOO_FEW_ROLLOUTS for drop in dropped):
        return ["some examples had fewer than two usable rollouts: nothing to compare, advantage 0 (too_few_rollouts)"]
    return []


def is_flat(trajectories: Sequence[Trajectory], target: Target) -> bool:
    """Whether nothing differs (max == min, exactly): no reward that is compared, nor the known credit of turns that are.

    Under GDPO every reward must be equal: sums can tie where the rewards do not.
    """
    return group_spread(trajectories, target) == 0


def group_spread(trajectories: Sequence[Trajectory], target: Target) -> float:
    """The largest difference inside a group of anything that pays: a reward that is compared, or the credit of a turn index."""
    by_turn: dict[tuple[str, int], list[float]] = {}
    for trajectory in trajectories:
        for segment in trajectory.segments:
            for turn in segment.turns:
                if turn.credit is not None:  # without credit the outcome pays, and that is equal
                    by_turn.setdefault(turn.cell, []).append(turn.credit)
    widest = spread([trajectory.rewards for trajectory in trajectories], target)
    return max([widest, *(max(credits) - min(credits) for credits in by_turn.values())])
