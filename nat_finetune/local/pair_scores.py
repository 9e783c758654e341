"""What the policy makes of held-out preference pairs: teacher-forced, in eval mode, encoded as an update encodes them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from hashlib import sha256
from math import fsum, isfinite

from nat_finetune.algorithms.dpo import PER_LENGTH
from nat_finetune.errors import Stage, boundary
from nat_finetune.local.optimise import Learner
from nat_finetune.local.pair_rows import Side, Sides, fitted, pair_ids
from nat_finetune.local.policy import LocalPolicy
from nat_finetune.local.settings import PreferenceSettings, UpdateSettings
from nat_finetune.types import PairScore, PreferencePair

_ROWS = 512
"""Completions that are scored between two chances to cancel; inside, the engine cuts them by its token budget."""

Totals = Mapping[Side, float]
"""Log-probability of each completion, nats."""


class PairScoring:
    """Scores pairs by the policy and by its reference, the reference once for the same pairs.

    Both read the same rows in the same batches: where they are the same weights, the difference is exactly 0.
    """

    def __init__(self, policy: LocalPolicy, learner: Learner, settings: UpdateSettings) -> None:
        self._policy = policy
        self._learner = learner
        self._settings = settings
        self._limit = settings.max_length or policy.max_context
        algorithm = settings.algorithm
        self._per_length = isinstance(algorithm, PreferenceSettings) and algorithm.loss in PER_LENGTH
        self._held: dict[str, Totals] = {}
        """The reference's totals by the digest of their rows; of one reference only."""
        self._held_digest = ""

    async def score(self, pairs: Sequence[PreferencePair]) -> list[PairScore | None]:
        """See `interfaces.PairScorer`."""
        sides = await asyncio.to_thread(self._encode, pairs)
        rows = list(dict.fromkeys(side for both in sides if both is not None for side in both))
        now = await self._now(rows)
        reference = await self._reference(rows)
        return [None if both is None else self._compare(both, now, reference) for both in sides]

    def _encode(self, pairs: Sequence[PreferencePair]) -> list[Sides | None]:
        truncate = self._settings.on_too_long == "truncate_prompt"
        chat = self._policy.format
        return [fitted(pair_ids(pair, chat), self._limit, truncate_prompts=truncate) for pair in pairs]

    def _compare(self, both: Sides, now: Totals, reference: Totals | None) -> PairScore | None:
        chosen, rejected = both
        margin = now[chosen] - now[rejected]
        if not isfinite(margin):
            return None
        if reference is None:
            return PairScore(margin, None)
        gains = [(now[side] - reference[side]) / (len(side[1]) if self._per_length else 1) for side in both]
        gap = gains[0] - gains[1]
        return PairScore(margin, gap if isfinite(gap) else None)

    async def _now(self, rows: Sequence[Side]) -> Totals:
        totals: dict[Side, float] = {}
        for batch in _batches(rows):
            totals |= _totals(batch, await self._policy.engine.score(batch, temperature=1.0))
        return totals

    async def _reference(self, rows: Sequence[Side]) -> Totals | None:
        held = self._learner.reference
        if held is None:
            return None
        if held.digest != self._held_digest:
            self._held, self._held_digest = {}, held.digest
        key = sha256(repr(rows).encode()).hexdigest()
        if key not in self._held:
            totals: dict[Side, float] = {}
            for batch in _batches(rows):
                totals |= await asyncio.to_thread(self._by_reference, batch)
            self._held[key] = totals
        return self._held[key]

    def _by_reference(self, batch: Sequence[Side]) -> Totals:
        reference = self._learner.reference
        if reference is None:
            return {}
        with self._policy.exclusive(), reference.active(), boundary(Stage.MODEL):
            return _totals(batch, self._policy.score_rows(batch))


def _batches(rows: Sequence[Side]) -> list[Sequence[Side]]:
    return [rows[start : start + _ROWS] for start in range(0, len(rows), _ROWS)]


def _totals(batch: Sequence[Side], scored: Sequence[Sequence[float]]) -> Totals:
    return {side: fsum(values) for side, values in zip(batch, scored, strict=True)}
