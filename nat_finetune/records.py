"""Training on records instead of rollouts: what a run reads, and what it says of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from pydantic_core import to_json

from nat_finetune.errors import DataError, Stage, StageError, boundary
from nat_finetune.interfaces import RecordBuilder, RecordLoader
from nat_finetune.types import Dropped, DropReason, Item, Record


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

    def build(self) -> Iterator[Item | Dropped]:
        """Items, and everything that was left out with its reason.

        Raises:
            DataError: the dataset can't be read, or its records can't be used.
        """
        try:
            yield from self.builder.build(self._records())
        except DataError as error:
            raise DataError(f"{self.key}: {error}") from error

    def about(self) -> dict[str, Any]:
        """What the last `build` read, for the run's metrics and account."""
        return {"read": self.read, "hash": self.digest, "notes": self.builder.notes()}

    def warnings(self, dropped: Sequence[Dropped]) -> list[str]:
        """What to say of records that the last `build` could not use."""
        skipped = [drop.detail for drop in dropped if drop.reason is DropReason.BAD_RECORD]
        if not skipped:
            return []
        return [f"{len(skipped):,} of {self.read:,} records can't be used and are left out, such as {skipped[0]}"]

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
