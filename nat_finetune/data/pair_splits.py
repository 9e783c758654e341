"""Pairs as rows of a split: by task key where there is one, else by what their contexts say, never by their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from nat_finetune.data.keys import context_key
from nat_finetune.data.near_duplicates import THRESHOLD
from nat_finetune.data.splits import Row, Side, SplitBy, assign, ties
from nat_finetune.types import Dropped, DropReason, Message, PreferencePair


@dataclass(frozen=True, slots=True)
class SplitPairs:
    """Pairs by side, in their order."""

    train: list[PreferencePair]
    validation: list[PreferencePair]
    test: list[PreferencePair]
    dropped: list[Dropped]
    """Pairs whose context belongs to two sides of a kept split."""
    sides: Mapping[str, Side]
    """To keep: side by key of context."""


def pair_rows(pairs: Sequence[PreferencePair]) -> tuple[list[Row], list[int]]:
    """One row for each context and task key, and for each pair the place of its row.

    A row's key is a digest of what it stands for, so it stays the same when lines are added to a file.
    """
    places: dict[str, int] = {}
    rows: list[Row] = []
    of_pair = []
    for pair in pairs:
        task = pair.provenance.task_key
        key = blake2b(f"{task!r} {context_key(pair.context)}".encode(), digest_size=16).hexdigest()
        if key not in places:
            places[key] = len(rows)
            rows.append(Row(key, context_text(pair.context), task))
        of_pair.append(places[key])
    return rows, of_pair


def context_text(context: Sequence[Message]) -> str:
    """What the messages of a context say; of a single user message its very text."""
    return "\n".join(part for message in context for part in _texts(message.get("content")))


def split_pairs(
    pairs: Sequence[PreferencePair],
    *,
    validation: float,
    test: float = 0.0,
    by: SplitBy = "near_duplicates",
    threshold: float = THRESHOLD,
    seed: int = 0,
    kept: Mapping[str, Side] | None = None,
) -> SplitPairs:
    """Put pairs on sides so that no context, and nothing nearly like it, is on two; shares are of contexts.

    Raises:
        ConfigError: near-duplicates are asked for, and `datasketch` is not installed.
    """
    rows, of_pair = pair_rows(pairs)
    found = ties(rows, by=by, threshold=threshold, seed=seed)
    made = assign(rows, found, validation=validation, test=test, seed=seed, kept=kept)
    parts: dict[Side | None, list[PreferencePair]] = {"train": [], "validation": [], "test": [], None: []}
    for pair, place in zip(pairs, of_pair, strict=True):
        parts[made.sides[place]].append(pair)
    why = {place: leak.why for place, leak in made.bridges}
    dropped = [
        Dropped("pair", DropReason.BRIDGES_SPLIT, why[place], pair.provenance.example_id, record=pair.provenance.record)
        for pair, place in zip(pairs, of_pair, strict=True)
        if place in why
    ]
    sides = {row.key: side for row, side in zip(rows, made.sides, strict=True) if side is not None}
    return SplitPairs(parts["train"], parts["validation"], parts["test"], dropped, {**(kept or {}), **sides})


def _texts(content: object) -> list[str]:
    if isinstance(content, str):
        return [content]
    if isinstance(content, list | tuple):
        return [str(part["text"]) for part in content if isinstance(part, Mapping) and "text" in part]
    return []
