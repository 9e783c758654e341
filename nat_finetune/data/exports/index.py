"""Which pairs of a stream are written: the rules of `data.selection` over digests, so that no text stays in memory.

A pair is 49 bytes here: 64-bit digests of its context, its two texts, its candidate set and its cluster, and whether a person
judged it. Two of a million digests are equal by chance once in 40 million files.
"""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from nat_finetune.data.keys import context_key
from nat_finetune.data.pair_splits import context_text
from nat_finetune.data.seeds import derive_seed
from nat_finetune.data.selection import PairWeighting, SelectionRules
from nat_finetune.errors import DataError
from nat_finetune.types import DropReason, Message

PairWeights = Literal["sample", "refuse"]
"""What to do where the rules give pairs weights and the file has no place for them: draw one of each set, or refuse."""
Digests = NDArray[np.uint64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Kept:
    """Which items of the stream are written."""

    mask: Mask
    dropped: Counter[DropReason]
    weighting: PairWeighting
    sets: int
    """Candidate sets among them, those without a name not counted."""
    repeated: int
    """Rows that say what an earlier one says: a second person's judgment, written again for its weight."""
    contradictions: int


class ItemIndex:
    """What must be known of every item to choose among them all."""

    def __init__(self) -> None:
        self._columns = {name: array("Q") for name in ("context", "text", "chosen", "rejected", "set", "cluster")}
        self._judged = bytearray()
        self._weights: tuple[float, float] | None = None

    def __len__(self) -> int:
        return len(self._judged)

    def add(
        self,
        context: Iterable[Message],
        chosen: str,
        rejected: str,
        *,
        cluster: str | None,
        set_id: str | None = None,
        judged: bool = False,
        weight: float = 1.0,
    ) -> None:
        """Add an item; one without a cluster belongs to those of the same context."""
        messages = tuple(context)
        text = digest(context_text(messages))
        values = (
            digest(context_key(messages)),
            text,
            digest(chosen),
            digest(rejected),
            0 if set_id is None else digest(set_id),
            text if cluster is None else digest(cluster),
        )
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)
        self._judged.append(judged)
        low, high = self._weights or (weight, weight)
        self._weights = (min(low, weight), max(high, weight))

    def column(self, name: Literal["context", "text", "set", "cluster"]) -> Digests:
        """One digest for each item."""
        return np.frombuffer(self._columns[name], np.uint64)

    def select(self, rules: SelectionRules, weights: PairWeights, *, seed: int, best: bool = False) -> Kept:
        """Apply the rules to pairs, as `selection.select_pairs` does; `seed` is the run's.

        Args:
            rules: What to drop, and what weighs the same.
            weights: What to do where a candidate set has several pairs and all sets are to count the same.
            seed: Of the draws.
            best: Keep the first pair of a set, whose chosen text is the best one, instead of drawing one.

        Raises:
            DataError: pairs have weights that no row can have.
        """
        self._check_weights()
        judged = np.frombuffer(self._judged, np.bool_)
        labels, both_ways = self._labels()
        reasons: Counter[DropReason] = Counter()
        mask = np.ones(len(self), np.bool_)
        keeps = judged if rules.on_contradiction is None else np.full(len(self), rules.on_contradiction == "keep")
        _drop(mask, both_ways & ~keeps, DropReason.CONTRADICTION, reasons)
        heads = np.arange(len(self))
        if rules.deduplicate:
            heads = _heads(labels, mask)
            _drop(mask, (heads != np.arange(len(self))) & ~(judged & judged[heads]), DropReason.DUPLICATE, reasons)
        if rules.max_pairs is not None:
            firsts = np.flatnonzero(mask & (heads == np.arange(len(self))))
            if len(firsts) > rules.max_pairs:
                drawn = random.Random(derive_seed(seed, "max_pairs")).sample(range(len(firsts)), rules.max_pairs)
                _drop(mask, ~np.isin(heads, firsts[drawn]), DropReason.MAX_PAIRS, reasons)
        weighting: PairWeighting = rules.weighting or ("pair" if bool(judged[mask].all()) else "set")
        if best or weighting == "set":
            firsts = mask & (heads == np.arange(len(self))) & (self.column("set") != 0)
            others = _others_of_sets(self.column("set"), firsts, None if best else derive_seed(seed, "pair_of_set"))
            if weights == "refuse" and not best and others.any():
                raise DataError(_several(int(others.sum()), int(firsts.sum())))
            _drop(mask, others[heads], DropReason.ONE_OF_ITS_SET, reasons)
        named = self.column("set")[mask]
        return Kept(
            mask,
            reasons,
            weighting,
            sets=len(np.unique(named[named != 0])),
            repeated=int((mask & (heads != np.arange(len(self)))).sum()),
            contradictions=len(np.unique(labels[both_ways])) // 2,
        )

    def first_of_each(self, mask: Mask) -> Mask:
        """Those of the mask whose chosen text is there for the first time in its context."""
        labels = _group(*(np.frombuffer(self._columns[name], np.uint64) for name in ("context", "chosen")))
        first: Mask = _heads(labels, mask) == np.arange(len(self))
        return mask & first

    def _labels(self) -> tuple[NDArray[np.int64], Mask]:
        """Equal for pairs that say the same; and where the reverse is said too."""
        chosen, rejected = (np.frombuffer(self._columns[name], np.uint64) for name in ("chosen", "rejected"))
        couples = _group(self.column("context"), np.minimum(chosen, rejected), np.maximum(chosen, rejected))
        turned = chosen < rejected
        one, other = (np.zeros(len(self) + 1, np.bool_) for _ in range(2))
        one[couples[turned]] = True
        other[couples[~turned]] = True
        return couples * 2 + turned, (one & other)[couples]

    def _check_weights(self) -> None:
        if self._weights is not None and self._weights[0] != self._weights[1]:
            low, high = self._weights
            raise DataError(f"the builder gave pairs weights from {low:g} to {high:g}, and the file has no place for them")


def digest(text: str) -> int:
    """64 bits of a text, never 0."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little") or 1


def _several(others: int, pairs: int) -> str:
    return (
        f"{others:,} of {pairs:,} pairs share their candidate set with another one, and `pair_weighting: set` makes every set "
        "count the same, which no file of this format can say: draw one pair of each set with --pair-weights sample, or let "
        "all pairs count the same with pair_weighting: pair"
    )


def _drop(mask: Mask, where: Mask, reason: DropReason, reasons: Counter[DropReason]) -> None:
    left_out = mask & where
    if left_out.any():
        reasons[reason] += int(left_out.sum())
        mask &= ~left_out


def _group(*columns: Digests) -> NDArray[np.int64]:
    """A number for each row, equal where all columns are."""
    order = np.lexsort(columns)
    new = np.zeros(len(order), np.int64)
    for column in columns:
        in_order = column[order]
        new[1:] |= in_order[1:] != in_order[:-1]
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(new)
    return numbers


def _heads(labels: NDArray[np.int64], mask: Mask) -> NDArray[np.int64]:
    """For each row the first one that is kept and has its label; a row that is not kept is its own."""
    heads = np.arange(len(labels))
    there = np.flatnonzero(mask)
    _, first, inverse = np.unique(labels[there], return_index=True, return_inverse=True)
    heads[there] = there[first[inverse]]
    return heads


def _others_of_sets(sets: Digests, among: Mask, seed: int | None) -> Mask:
    """All but one of each set: one that the seed draws, or the first where there is no seed."""
    places = np.flatnonzero(among)
    priority = np.arange(len(places)) if seed is None else np.random.default_rng(seed).random(len(places))
    order = np.lexsort((priority, sets[places]))
    in_order = sets[places][order]
    further = np.zeros(len(order), np.bool_)
    further[1:] = in_order[1:] == in_order[:-1]
    others = np.zeros(len(sets), np.bool_)
    others[places[order[further]]] = True
    return others
