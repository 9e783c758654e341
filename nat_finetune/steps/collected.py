"""The rollouts of a run's steps as its folder holds them: what a stopped session finished, and what a round is built on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from nat_finetune.errors import RolloutFailureLimit
from nat_finetune.runstore import RunStore
from nat_finetune.types import Cause, Rollout


class Collected:
    """Finds finished rollouts again; what does not count any more is `superseded`, to be accounted for."""

    def __init__(self, store: RunStore, max_failure_rate: float) -> None:
        self._store = store
        self._max_failure_rate = max_failure_rate
        self._pending: dict[int, list[Rollout]] = {}
        self.superseded: list[Rollout] = []
        """Rollouts that were run anew."""

    def find(self, offset: int) -> None:
        """Look at what was written after the last commit, at `offset` of `events.jsonl`."""
        for step, rollout in self._store.rollouts(offset):
            if rollout is None:
                self.discard(step)
            else:
                self._pending.setdefault(step, []).append(rollout)

    def discard(self, step: int) -> None:
        """What is left of a step does not count."""
        self.superseded += self._pending.pop(step, [])

    def collect_anew(self, step: int, wanted: set[str]) -> None:
        """Forget what was found of a step, unless it is these rollouts and no others: then the step's collection was whole."""
        found = self._pending.get(step, [])
        if found and {rollout.rollout_id for rollout in found if is_final(rollout)} != wanted:
            self._store.restart_step(step)
            self.discard(step)

    def unfinished(self, step: int, wanted: set[str]) -> list[Rollout]:
        """Those of the wanted rollouts that a stopped session finished, with their earlier attempts.

        Others stay for when they are asked for; attempts without an end are superseded. Where so many failed that the step
        would end the run once more, the failed ones are superseded too, to be run anew: what failed may have been mended.
        """
        found = self._pending.pop(step, [])
        latest = {rollout.rollout_id: rollout for rollout in found}  # a failed one that was run anew has its id
        finals = [rollout for name, rollout in latest.items() if is_final(rollout) and name in wanted]
        if _failure_message(finals, self._max_failure_rate) is not None:
            finals = [rollout for rollout in finals if not _failed(rollout)]
        ended = {rollout.rollout_id for rollout in finals}
        others = [rollout for rollout in found if _request(rollout) not in wanted]
        usable = [rollout for rollout in latest.values() if _request(rollout) in ended]
        kept = {id(rollout) for rollout in [*usable, *others]}
        self.superseded += [rollout for rollout in found if id(rollout) not in kept]
        if others:
            self._pending[step] = others
        return usable

    def committed(self, step: int) -> list[Rollout]:
        """The rollouts of a step that is in the checkpoint: accounted for already, but its round is still under way."""
        found: dict[str, Rollout] = {}
        for index, rollout in self._store.rollouts():
            if index == step and rollout is None:
                found.clear()
            elif index == step and rollout is not None:
                found[rollout.rollout_id] = rollout
        return sorted(found.values(), key=lambda rollout: rollout.rollout_id)


def is_final(rollout: Rollout) -> bool:
    """Whether this attempt is the one that counts; earlier ones carry `~attempt` in their id."""
    return "~" not in rollout.rollout_id


def _request(rollout: Rollout) -> str:
    return rollout.rollout_id.split("~")[0]


def require_few_failures(rollouts: list[Rollout], limit: float) -> list[Rollout]:
    """The rollouts of a step, as they are.

    Raises:
        RolloutFailureLimit: a larger share than `limit` failed through no fault of the policy.
    """
    message = _failure_message([rollout for rollout in rollouts if is_final(rollout)], limit)
    if message is not None:
        raise RolloutFailureLimit(message)
    return rollouts


def require_some_success(rollouts: Sequence[Rollout], what: str) -> None:
    """Of an evaluation, whose unknown scores are left out: that something is known.

    Raises:
        RolloutFailureLimit: every rollout failed through no fault of the policy.
    """
    finals = [rollout for rollout in rollouts if is_final(rollout)]
    if finals and all(map(_failed, finals)):
        ends = "once it is mended, a run goes on with --resume"
        raise RolloutFailureLimit(f"all {len(finals)} rollouts of the {what} failed ({ends}):\n{_most_frequent(finals)}")


def _failed(rollout: Rollout) -> bool:
    """Whether it failed through no fault of the policy."""
    return rollout.failure is not None and rollout.failure.cause is Cause.INFRASTRUCTURE


def _failure_message(rollouts: Sequence[Rollout], limit: float) -> str | None:
    """What to say when more than `limit` (a share) of the rollouts failed through no fault of the policy; None if not."""
    failed = [rollout for rollout in rollouts if _failed(rollout)]
    if len(failed) <= limit * len(rollouts):
        return None
    allowed = f"more than finetuning.max_failure_rate = {limit:g} allows"
    return f"{len(failed)} of {len(rollouts)} rollouts failed, {allowed}:\n{_most_frequent(failed)}"


def _most_frequent(failed: Sequence[Rollout]) -> str:
    """What failed most, a line each."""
    failures = [rollout.failure for rollout in failed if rollout.failure is not None]
    kinds = Counter((f.stage, f.error_type, f.message) for f in failures).most_common(3)
    return "\n".join(f"  {count} x in {stage}: {error_type}: {message}" for (stage, error_type, message), count in kinds)
