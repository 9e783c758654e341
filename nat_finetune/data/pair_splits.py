"""Pairs as rows of a split: by task key where there is one, else by what their contexts say, never by their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from nat_finetune.data.keys import context_key, example_key
from nat_finetune.data.near_duplicates import THRESHOLD
from nat_finetune.data.splits import Row, Side, SplitBy, Tie, assign, clusters, ties
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
    """To keep: side by `pair_key`."""
    clusters: Mapping[str, str]
    """By `pair_key`: what a pair is not independent of, its task or its near-duplicates."""
    bridges: Mapping[str, str]
    """Why it was left out, by `pair_key`."""


def pair_rows(pairs: Sequence[PreferencePair]) -> tuple[list[Row], list[int]]:
    """One row for each context and task key, and for each pair the place of its row.

    A row's key is a digest of what it stands for, so it stays the same when lines are added to a file.
    """
    places: dict[str, int] = {}
    rows: list[Row] = []
    of_pair = []
    for pair in pairs:
        key = pair_key(pair)
        if key not in places:
            places[key] = len(rows)
            rows.append(Row(key, context_text(pair.context), pair.provenance.task_key))
        of_pair.append(places[key])
    return rows, of_pair


def pair_key(pair: PreferencePair) -> str:
    """What the split places: a context with its task key, as a key of `split.json`."""
    asked = f"{pair.provenance.task_key!r} {context_key(pair.context)}"
    return example_key(blake2b(asked.encode(), digest_size=16).hexdigest())


def pair_clusters(
    pairs: Sequence[PreferencePair], *, by: SplitBy = "near_duplicates", threshold: float = THRESHOLD, seed: int = 0
) -> dict[str, str]:
    """By `pair_key` what a pair is not independent of: its task, or the first of its near-duplicates.

    Raises:
        ConfigError: near-duplicates are asked for, and `datasketch` is not installed.
    """
    rows, _ = pair_rows(pairs)
    return _clusters(rows, ties(rows, by=by, threshold=threshold, seed=seed))


def _clusters(rows: Sequence[Row], found: Sequence[Tie]) -> dict[str, str]:
    heads = clusters(len(rows), found)
    return {row.key: rows[head].task or rows[head].key for row, head in zip(rows, heads, strict=True)}


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
    return SplitPairs(
        parts["train"],
        parts["validation"],
        parts["test"],
        dropped,
        sides={**(kept or {}), **sides},
        clusters=_clusters(rows, found),
        bridges={rows[place].key: reason for place, reason in why.items()},
    )


def _texts(content: object) -> list[str]:
    if isinstance(content, str):
        return [content]
    if isinstance(content, list | tuple):
        return [str(part["text"]) for part in content if isinstance(part, Mapping) and "text" in part]
    return []
