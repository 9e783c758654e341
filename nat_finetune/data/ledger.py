"""Where every model call and every token of a run went: trained, masked or dropped, and why. The rows sum to all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from nat_finetune.data.keys import example_key
from nat_finetune.data.trajectories import is_target
from nat_finetune.types import (
    CandidateScored,
    Cause,
    Collection,
    Dropped,
    DropReason,
    Group,
    ModelCall,
    PreferencePair,
    Rollout,
    Target,
)

Bucket = tuple[str, str | None]
"""(`trained` | `masked` | `dropped`, reason)."""

TRAINED: Bucket = ("trained", None)
CONTEXT: Bucket = ("masked", "context")
"""Prompt tokens: the policy did not sample them."""
ZERO_ADVANTAGE: Bucket = ("masked", "zero_advantage")
"""Sampled tokens of a flat group: nothing in it differs, so nothing pulls."""

TRUNCATED: Bucket = ("masked", "truncated")
"""Sampled tokens of a rollout that `max_tokens` cut off: compared with others, not trained."""

_ORDER = {"trained": 0, "masked": 1, "dropped": 2}
_WHOLE = ("rollout", "trajectory")


class Ledger:
    """Counts calls and tokens by bucket, one step at a time."""

    def __init__(self) -> None:
        self._calls: dict[Bucket, int] = {}
        self._tokens: dict[Bucket, int] = {}
        self._uncounted = 0

    def add(
        self, rollouts: Iterable[Rollout], collection: Collection, target: Target, dropped_later: Sequence[Dropped] = ()
    ) -> None:
        """Account for every call of these rollouts, given what became of them.

        `dropped_later` is what the backend left out of the collection's items (`JobSpec.dropped`).
        """
        fate = _Fate(collection, target, dropped_later)
        for rollout in rollouts:
            for call, bucket in fate.of(rollout):
                self._count(call, bucket)

    def add_superseded(self, rollouts: Iterable[Rollout]) -> None:
        """Account for rollouts of a stopped session that were run anew."""
        self._add_dropped(rollouts, DropReason.SUPERSEDED)

    def add_unfinished(self, rollouts: Iterable[Rollout]) -> None:
        """Account for rollouts of a step that the run has not got to the end of."""
        self._add_dropped(rollouts, DropReason.UNFINISHED)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; `rows` sum to everything that was added.

        `calls_without_tokens` is how many calls did not say what their tokens are: these are in no row's tokens.
        """
        buckets = sorted(set(self._calls) | set(self._tokens), key=lambda b: (_ORDER[b[0]], b[1] or ""))
        return {
            "rows": [
                {"bucket": b[0], "reason": b[1], "calls": self._calls.get(b, 0), "tokens": self._tokens.get(b, 0)}
                for b in buckets
            ],
            "calls_without_tokens": self._uncounted,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Ledger:
        """A ledger as it was written; an empty mapping is an empty ledger."""
        ledger = cls()
        for row in data.get("rows", ()):
            bucket = (row["bucket"], row["reason"])
            ledger._calls[bucket], ledger._tokens[bucket] = row["calls"], row["tokens"]
        ledger._uncounted = data.get("calls_without_tokens", 0)
        return ledger

    def _add_dropped(self, rollouts: Iterable[Rollout], reason: DropReason) -> None:
        for rollout in rollouts:
            for call in rollout.model_calls:
                self._count(call, _dropped(reason))

    def _count(self, call: ModelCall, bucket: Bucket) -> None:
        self._calls[bucket] = self._calls.get(bucket, 0) + 1
        self._tokens[bucket] = self._tokens.get(bucket, 0) + len(call.completion_ids or ())
        self._tokens[CONTEXT] = self._tokens.get(CONTEXT, 0) + len(call.prompt_ids or ())
        self._uncounted += call.prompt_ids is None or call.completion_ids is None


class _Fate:
    """What became of each call of one collection."""

    def __init__(self, collection: Collection, target: Target, dropped_later: Sequence[Dropped]) -> None:
        self._target = target
        self._trained = set(_trained_calls(collection, dropped_later))
        everything = [*collection.dropped, *dropped_later]
        self._compared = {
            t.rollout_id for item in collection.items if isinstance(item, Group) for t in item.trajectories if not t.trained
        }
        self._by_call = dict(_drops_of_calls(everything))
        self._by_rollout = {d.rollout_id: d.reason for d in everything if d.what in _WHOLE}
        self._by_example = {
            example_key(d.example_id): d.reason for d in everything if d.what == "group" and d.example_id is not None
        }

    def of(self, rollout: Rollout) -> Iterator[tuple[ModelCall, Bucket]]:
        """Each call of a rollout with its bucket."""
        scored = {event.call_seq for event in rollout.events if isinstance(event, CandidateScored)}
        for call in rollout.model_calls:
            if (rollout.rollout_id, call.seq) in self._trained:
                yield call, TRAINED
                continue
            reason = self._reason(rollout, call)
            if reason is None:
                reason = DropReason.NOT_PAIRED if call.seq in scored else DropReason.NOT_A_CANDIDATE
            yield call, self._bucket(rollout, reason)

    def _bucket(self, rollout: Rollout, reason: DropReason) -> Bucket:
        if reason is DropReason.FLAT_GROUP:
            return ZERO_ADVANTAGE
        return TRUNCATED if reason is DropReason.TRUNCATED and rollout.rollout_id in self._compared else _dropped(reason)

    def _reason(self, rollout: Rollout, call: ModelCall) -> DropReason | None:
        """Why a call is not trained, the closest reason first."""
        if not is_target(call, self._target):
            return DropReason.OUTSIDE_TARGET
        if rollout.failure is not None and rollout.failure.cause is Cause.INFRASTRUCTURE:
            return DropReason.INFRASTRUCTURE_FAILURE
        return (
            self._by_call.get((rollout.rollout_id, call.seq))
            or self._by_rollout.get(rollout.rollout_id)
            or self._by_example.get(example_key(rollout.example_id))
        )


def _dropped(reason: DropReason) -> Bucket:
    return ("dropped", reason.value)


Call = tuple[str | None, int | None]
"""Rollout and `seq`."""


def _drops_of_calls(dropped: Iterable[Dropped]) -> Iterator[tuple[Call, DropReason]]:
    for drop in dropped:
        for seq in (drop.call_seq, drop.rejected_call):
            if seq is not None:
                yield (drop.rollout_id, seq), drop.reason


def _trained_calls(collection: Collection, dropped_later: Sequence[Dropped]) -> Iterator[Call]:
    """Calls of the items that the backend trained on."""
    rollouts = {drop.rollout_id for drop in dropped_later if drop.what in _WHOLE}
    pairs = {(drop.rollout_id, drop.call_seq, drop.rejected_call) for drop in dropped_later if drop.what == "pair"}
    alone = {(drop.rollout_id, drop.call_seq) for drop in dropped_later if drop.what == "demonstration"}
    for item in collection.items:
        if isinstance(item, Group):
            for trajectory in item.trajectories:
                if trajectory.trained and trajectory.rollout_id not in rollouts:
                    for segment in trajectory.segments:
                        yield from ((trajectory.rollout_id, turn.call_seq) for turn in segment.turns)
        elif isinstance(item, PreferencePair):
            where = item.provenance
            if (where.rollout_id, where.chosen_call, where.rejected_call) not in pairs:
                yield (where.rollout_id, where.chosen_call)
                yield (where.rollout_id, where.rejected_call)
        elif (item.provenance.rollout_id, item.provenance.chosen_call) not in alone:
            yield (item.provenance.rollout_id, item.provenance.chosen_call)
