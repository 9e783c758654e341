"""`split.json`: which row is on which side, to be kept when rows are added and to be used by other runs."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nat_finetune.data.keys import example_key
from nat_finetune.data.splits import SIDES, Side
from nat_finetune.errors import DataError

NAME = "split.json"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Manifest:
    """Sides by key of row (`data.keys.example_key`); rows that are gone keep theirs, should they come back."""

    sides: Mapping[str, Side]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able: the ids of each side."""
        return {"version": VERSION, **{side: [json.loads(k) for k, at in self.sides.items() if at == side] for side in SIDES}}

    @classmethod
    def from_dict(cls, data: Any) -> Manifest:
        """Read what `to_dict` wrote.

        Raises:
            DataError: it is something else, or an id is on two sides.
        """
        if not isinstance(data, dict) or data.get("version") != VERSION or set(data) != {"version", *SIDES}:
            found = sorted(data) if isinstance(data, dict) else type(data).__name__
            raise DataError(f"expected {{version: {VERSION}, train: [...], validation: [...], test: [...]}}, found {found}")
        sides: dict[str, Side] = {}
        for side in SIDES:
            ids = data[side]
            if not isinstance(ids, list):
                raise DataError(f"{side}: expected a list of ids, found {ids!r}")
            for given in ids:
                if not isinstance(given, str | int) or isinstance(given, bool):
                    raise DataError(f"{side}: expected a list of ids, found {given!r}")
                if sides.setdefault(example_key(given), side) != side:
                    raise DataError(f"the id {given!r} is both in {sides[example_key(given)]} and in {side}")
        return cls(sides)


def read_manifest(path: Path) -> Manifest:
    """The manifest in a file.

    Raises:
        DataError: there is none, or it is none.
    """
    try:
        return Manifest.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise DataError(f"finetuning.split.manifest: {path} can't be read: {error.strerror}") from None
    except (DataError, ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        raise DataError(f"finetuning.split.manifest: {path} is no split: {why}") from None


def manifest_for(path: Path, keys: Collection[str]) -> Manifest:
    """The manifest in a file, for rows with these keys.

    Raises:
        DataError: there is none, it is none, or it knows no such row: then the split would be a new one, with no word about it.
    """
    manifest = read_manifest(path)
    if not any(key in manifest.sides for key in keys):
        raise DataError(
            f"finetuning.split.manifest: {path} knows none of the {len(keys):,} examples: it is another dataset's, or their "
            "ids have changed (1 and '1' are two ids)"
        )
    return manifest
