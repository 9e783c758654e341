"""Training on records instead of rollouts: what a run reads, and what it says of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from pydantic_core import to_json

from nat_finetune.data.pair_splits import pair_key
from nat_finetune.data.splits import SIDES, Side
from nat_finetune.errors import DataError, Stage, StageError, boundary
from nat_finetune.interfaces import RecordBuilder, RecordLoader
from nat_finetune.types import Dropped, DropReason, Item, PreferencePair, Record


@dataclass(frozen=True, slots=True)
class PairSides:
    """A split of pairs, by `data.pair_splits.pair_key`."""

    sides: Mapping[str, Side]
    bridges: Mapping[str, str]
    """Why a pair belongs to two sides."""


@dataclass(slots=True)
class RecordSource:
    """A record dataset with the builder that trains on it; read as a stream, anew for each `build`."""

    loader: RecordLoader
    builder: RecordBuilder
    key: str
    """Where the config names the dataset."""
    read: int = 0
    """Records of the last `build`."""
    digest: str = ""
    """Hash of their values, order included."""
    split: PairSides | None = None
    """Which of their pairs are held out: `build` leaves these out. None: none."""
    pairs: Counter[Side] = field(default_factory=Counter)
    """Pairs of the last `build` by side; nothing without a split."""

    def build(self) -> Iterator[Item | Dropped]:
        """Items, and everything that was left out with its reason.

        Raises:
            DataError: the dataset can't be read, or its records can't be used.
        """
        self.pairs.clear()
        try:
            for made in self.builder.build(self._records()):
                placed = self._placed(made) if isinstance(made, PreferencePair) else made
                if placed is not None:
                    yield placed
        except DataError as error:
            raise DataError(f"{self.key}: {error}") from error

    def about(self) -> dict[str, Any]:
        """What the last `build` read, for the run's metrics and account."""
        about = {"read": self.read, "hash": self.digest, "notes": self.builder.notes()}
        return about if self.split is None else {**about, "pairs": {side: self.pairs[side] for side in SIDES}}

    def warnings(self, dropped: Sequence[Dropped]) -> list[str]:
        """What to say of records that the last `build` could not use."""
        skipped = [drop.detail for drop in dropped if drop.reason is DropReason.BAD_RECORD]
        if not skipped:
            return []
        return [f"{len(skipped):,} of {self.read:,} records can't be used and are left out, such as {skipped[0]}"]

    def _placed(self, pair: PreferencePair) -> PreferencePair | Dropped | None:
        """The pair if it is trained on, None if it is held out, dropped if it belongs to two sides.

        Raises:
            DataError: it was not there when the records were split.
        """
        if self.split is None:
            return pair
        key = pair_key(pair)
        side = self.split.sides.get(key)
        if side is not None:
            self.pairs[side] += 1
            return pair if side == "train" else None
        where = pair.provenance
        if key not in self.split.bridges:
            raise DataError(f"{where.record} was not there when the records were split: they changed while the run read them")
        return Dropped("pair", DropReason.BRIDGES_SPLIT, self.split.bridges[key], where.example_id, record=where.record)

    def _records(self) -> Iterator[Record]:
        self.read, digest = 0, sha256()
        records = self.loader.records()
        while True:
            try:
                with boundary(Stage.WORKFLOW):
                    record = next(records, None)
            except StageError as error:
                raise DataError(f"reading records failed: {error.error_type}: {error}") from error
            if record is None:
                self.digest = digest.hexdigest()[:16]
                return
            self.read += 1
            digest.update(to_json((record.id, record.task_key, record.values, record.problem), inf_nan_mode="constants"))
            yield record
