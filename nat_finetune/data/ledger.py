"""Where every model call and every token of a run went: trained, masked or dropped, and why. The rows sum to all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nat_finetune.data.trajectories import is_target
from nat_finetune.interfaces import Target
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
)

Bucket = tuple[str, str | None]
"""(`trained` | `masked` | `dropped`, reason)."""

TRAINED: Bucket = ("trained", None)
CONTEXT: Bucket = ("masked", "context")
"""Prompt tokens: the policy did not sample them."""
ZERO_ADVANTAGE: Bucket = ("masked", "zero_advantage")
"""Sampled tokens of a flat group: nothing in it differs, so nothing pulls."""


class Ledger:
    """Counts calls and tokens by bucket, one step at a time."""

    def __init__(self) -> None:
        self._calls: dict[Bucket, int] = {}
        self._tokens: dict[Bucket, int] = {}

    def add(self, rollouts: Iterable[Rollout], collection: Collection, target: Target) -> None:
        """Account for every call of these rollouts, given what became of them."""
        fate = _Fate(collection, target)
        for rollout in rollouts:
            for call in rollout.model_calls:
                self._count(call, fate.of(rollout, call))

    def add_superseded(self, rollouts: Iterable[Rollout]) -> None:
        """Account for rollouts of a stopped session that were run anew."""
        for rollout in rollouts:
            for call in rollout.model_calls:
                self._count(call, ("dropped", DropReason.SUPERSEDED.value))

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; `rows` sum to everything that was added."""
        buckets = sorted(set(self._calls) | set(self._tokens), key=lambda b: (_ORDER[b[0]], b[1] or ""))
        return {
            "rows": [
                {"bucket": b[0], "reason": b[1], "calls": self._calls.get(b, 0), "tokens": self._tokens.get(b, 0)}
                for b in buckets
            ]
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Ledger:
        """A ledger as it was written; an empty mapping is an empty ledger."""
        ledger = cls()
        for row in data.get("rows", ()):
            bucket = (row["bucket"], row["reason"])
            ledger._calls[bucket], ledger._tokens[bucket] = row["calls"], row["tokens"]
        return ledger

    def _count(self, call: ModelCall, bucket: Bucket) -> None:
        self._calls[bucket] = self._calls.get(bucket, 0) + 1
        self._tokens[bucket] = self._tokens.get(bucket, 0) + len(call.completion_ids or ())
        self._tokens[CONTEXT] = self._tokens.get(CONTEXT, 0) + len(call.prompt_ids or ())


_ORDER = {"trained": 0, "masked": 1, "dropped": 2}


class _Fate:
    """What became of each call of one collection."""

    def __init__(self, collection: Collection, target: Target) -> None:
        self._target = target
        self._trained = set(_trained_calls(collection))
        self._by_call = {(d.rollout_id, d.call_seq): d for d in collection.dropped if d.call_seq is not None}
        self._by_rollout = {d.rollout_id: d for d in collection.dropped if d.rollout_id and d.what in _WHOLE}
        self._by_example = {repr(d.example_id): d for d in collection.dropped if d.what == "group"}

    def of(self, rollout: Rollout, call: ModelCall) -> Bucket:
        if (rollout.rollout_id, call.seq) in self._trained:
            return TRAINED
        if not is_target(call, self._target):
            return ("dropped", DropReason.OUTSIDE_TARGET.value)
        if rollout.failure is not None and rollout.failure.cause is Cause.INFRASTRUCTURE:
            return ("dropped", DropReason.INFRASTRUCTURE_FAILURE.value)
        for drop in self._candidates(rollout, call):
            if drop is not None:
                return ZERO_ADVANTAGE if drop.reason is DropReason.FLAT_GROUP else ("dropped", drop.reason.value)
        scored = any(isinstance(e, CandidateScored) and e.call_seq == call.seq for e in rollout.events)
        return ("dropped", (DropReason.NOT_PAIRED if scored else DropReason.NOT_A_CANDIDATE).value)

    def _candidates(self, rollout: Rollout, call: ModelCall) -> Iterator[Dropped | None]:
        """Drops that explain this call, the closest first."""
        yield self._by_call.get((rollout.rollout_id, call.seq))
        yield self._by_rollout.get(rollout.rollout_id)
        yield self._by_example.get(repr(rollout.example_id))


_WHOLE = ("rollout", "trajectory")


def _trained_calls(collection: Collection) -> Iterator[tuple[str | None, int | None]]:
    for item in collection.items:
        if isinstance(item, Group):
            for trajectory in item.trajectories:
                for segment in trajectory.segments:
                    yield from ((trajectory.rollout_id, turn.call_seq) for turn in segment.turns)
        elif isinstance(item, PreferencePair):
            yield (item.provenance.rollout_id, item.provenance.chosen_call)
            yield (item.provenance.rollout_id, item.provenance.rejected_call)
