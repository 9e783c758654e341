"""The rollouts of a run's steps as its folder holds them: what a stopped session finished, and what a round is built on."""

from __future__ import annotations

from nat_finetune.errors import RolloutFailureLimit
from nat_finetune.report.metrics import failure_message
from nat_finetune.runstore import RunStore
from nat_finetune.types import Rollout


class Collected:
    """Finds finished rollouts again; what does not count any more is `superseded`, to be accounted for."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._pending: dict[int, list[Rollout]] = {}
        self.superseded: list[Rollout] = []
        """Rollouts that were run anew."""

    def find(self, offset: int) -> None:
        """Look at what was written after the last commit, at `offset` of `events.jsonl`."""
        for step, rollout in self._store.rollouts(offset):
            if rollout is None:
                self.superseded += self._pending.pop(step, [])
            else:
                self._pending.setdefault(step, []).append(rollout)

    def unfinished(self, step: int, expected: int, *, anew: bool) -> list[Rollout]:
        """What a stopped session finished of a step; nothing of an incomplete one where it is to be collected `anew`."""
        found = self._pending.pop(step, [])
        finals = {rollout.rollout_id for rollout in found if is_final(rollout)}
        if anew and found and len(finals) < expected:
            self._store.restart_step(step)
            self.superseded += found
            return []
        usable = [rollout for rollout in found if rollout.rollout_id.split("~")[0] in finals]
        self.superseded += [rollout for rollout in found if rollout not in usable]
        return usable

    def committed(self, step: int) -> list[Rollout]:
        """The rollouts of a step that is in the checkpoint: accounted for already, but its round is still under way."""
        found: list[Rollout] = []
        for index, rollout in self._store.rollouts():
            if index == step:
                found = [*found, rollout] if rollout is not None else []
        return sorted(found, key=lambda rollout: rollout.rollout_id)


def is_final(rollout: Rollout) -> bool:
    """Whether this attempt is the one that counts; earlier ones carry `~attempt` in their id."""
    return "~" not in rollout.rollout_id


def require_few_failures(rollouts: list[Rollout], limit: float) -> list[Rollout]:
    """The rollouts of a step, as they are.

    Raises:
        RolloutFailureLimit: a larger share than `limit` failed through no fault of the policy.
    """
    message = failure_message([rollout for rollout in rollouts if is_final(rollout)], limit)
    if message is not None:
        raise RolloutFailureLimit(message)
    return rollouts
