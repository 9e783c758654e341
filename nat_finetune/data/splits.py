"""Train, validation and test without leaks: what belongs together stays on one side, and stays there when rows are added.

Two rows belong together with the same task key, with the same input, or, where one of them has no task key, as near-duplicates.
A *tie* is a set of rows that belong together for one reason. Rows that ties join, directly or in a chain, are a *cluster*.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from nat_finetune.data.near_duplicates import THRESHOLD, near_duplicates
from nat_finetune.data.seeds import derive_seed

Side = Literal["train", "validation", "test"]
SplitBy = Literal["near_duplicates", "task_key"]

SIDES: tuple[Side, ...] = ("train", "validation", "test")


@dataclass(frozen=True, slots=True)
class Row:
    """What the split needs to know of an example or a record."""

    key: str
    """Its identity, the same when more rows are added."""
    text: str
    """Input or context: answers and labels are not compared."""
    task: str | None = None


@dataclass(frozen=True, slots=True)
class Tie:
    """Rows that belong together, by their places."""

    rows: tuple[int, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Leak:
    """Two rows that belong together and stand on two sides."""

    first: int
    second: int
    why: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """Where each row goes."""

    sides: tuple[Side | None, ...]
    """None: left out, for it belongs to two sides."""
    bridges: tuple[tuple[int, Leak], ...]
    """Each row that was left out, with two of the rows that it belongs to."""


def ties(rows: Sequence[Row], *, by: SplitBy = "near_duplicates", threshold: float = THRESHOLD, seed: int = 0) -> list[Tie]:
    """What belongs together: task keys, then inputs, then near-duplicates where a row has no task key.

    Raises:
        ConfigError: near-duplicates are asked for, and `datasketch` is not installed.
    """
    found = _equal(((place, row.task) for place, row in enumerate(rows)), "the same task key {value!r}")
    found += _equal(((place, row.text) for place, row in enumerate(rows)), "the same input")
    if by == "near_duplicates" and any(row.task is None for row in rows):
        for couple in near_duplicates([row.text for row in rows], threshold=threshold, seed=seed):
            one, other = rows[couple.first], rows[couple.second]
            if (one.task is None or other.task is None) and one.text != other.text:
                found.append(Tie((couple.first, couple.second), f"near-duplicates, {couple.similarity:.2f} alike"))
    return found


def clusters(count: int, found: Iterable[Tie]) -> list[int]:
    """For each of `count` rows its cluster, named by the first row in it."""
    head = list(range(count))

    def find(place: int) -> int:
        while head[place] != place:
            head[place] = head[head[place]]
            place = head[place]
        return place

    for tie in found:
        for other in tie.rows[1:]:
            one, two = sorted((find(tie.rows[0]), find(other)))
            head[two] = one
    return [find(place) for place in range(count)]


def leaks(sides: Sequence[Side | None], found: Iterable[Tie]) -> list[Leak]:
    """Each held-out row that belongs to a row of an earlier side (train, validation, test), once."""
    leaking: dict[int, Leak] = {}
    for tie in found:
        first = {side: next((row for row in tie.rows if sides[row] == side), None) for side in SIDES}
        for row in tie.rows:
            side = sides[row]
            if side is None or side == "train" or row in leaking:
                continue
            earlier = [first[other] for other in SIDES[: SIDES.index(side)]]
            other = next((place for place in earlier if place is not None), None)
            if other is not None:
                leaking[row] = Leak(other, row, tie.why)
    return [leaking[row] for row in sorted(leaking)]


def assign(
    rows: Sequence[Row],
    found: Sequence[Tie],
    *,
    validation: float,
    test: float,
    seed: int,
    kept: Mapping[str, Side] | None = None,
) -> Assignment:
    """Put whole clusters on a side; rows that have one in `kept` keep it.

    A new row goes where the rows are that it belongs to; one that belongs to two sides is left out. Clusters of only new rows
    fill test and validation up to their share of all rows, in an order that depends on the seed and their rows' keys only.
    """
    placing = _Placing([(kept or {}).get(row.key) for row in rows], found)
    placing.follow_ties()
    sides = placing.sides
    left = [place for place, side in enumerate(sides) if side is None and place not in placing.bridges]
    loose = _clusters_of(left, found, len(rows))
    order = sorted(loose, key=lambda members: derive_seed(seed, "split", min(rows[place].key for place in members)))
    room = {
        "test": round(test * len(rows)) - sides.count("test"),
        "validation": round(validation * len(rows)) - sides.count("validation"),
    }
    for members in order:
        side: Side = next((name for name in ("test", "validation") if len(members) <= room[name]), "train")
        for place in members:
            sides[place] = side
        if side != "train":
            room[side] -= len(members)
    return Assignment(tuple(sides), tuple(sorted(placing.bridges.items())))


class _Placing:
    """Rows that follow those which have a side already."""

    def __init__(self, sides: list[Side | None], found: Sequence[Tie]) -> None:
        self.sides = sides
        self.bridges: dict[int, Leak] = {}
        self._ties = found
        self._of_row: dict[int, list[int]] = {}
        for number, tie in enumerate(found):
            for row in tie.rows:
                self._of_row.setdefault(row, []).append(number)
        self._standing: list[dict[Side, int]] = [{} for _ in found]
        """For each tie, by side, the first row of it that is there."""

    def follow_ties(self) -> None:
        """Place what belongs to one side and leave out what belongs to two, until nothing changes."""
        waiting = [row for row, side in enumerate(self.sides) if side is not None]
        for row in waiting:
            self._stand(row)
        while waiting:
            touched = sorted(
                {other for row in waiting for number in self._of_row.get(row, ()) for other in self._ties[number].rows}
            )
            waiting = [row for row in touched if self._place(row)]

    def _stand(self, row: int) -> None:
        side = self.sides[row]
        if side is not None:
            for number in self._of_row.get(row, ()):
                self._standing[number].setdefault(side, row)

    def _place(self, row: int) -> bool:
        """Whether the row got a side."""
        if self.sides[row] is not None or row in self.bridges:
            return False
        near: dict[Side, tuple[int, str]] = {}
        for number in self._of_row[row]:
            for side, other in self._standing[number].items():
                near.setdefault(side, (other, self._ties[number].why))
        if len(near) == 1:
            self.sides[row] = next(iter(near))
            self._stand(row)
            return True
        (one, why), (other, also) = list(near.values())[:2]
        self.bridges[row] = Leak(one, other, why if why == also else f"{why}; {also}")
        return False


def _equal(values: Iterable[tuple[int, str | None]], why: str) -> list[Tie]:
    groups: dict[str, list[int]] = {}
    for place, value in values:
        if value is not None:
            groups.setdefault(value, []).append(place)
    return [Tie(tuple(rows), why.format(value=value)) for value, rows in groups.items() if len(rows) > 1]


def _clusters_of(left: Sequence[int], found: Sequence[Tie], count: int) -> list[list[int]]:
    """Clusters of the rows that have no side yet, by ties among them alone."""
    there = set(left)
    among = [Tie(rows, tie.why) for tie in found if len(rows := tuple(row for row in tie.rows if row in there)) > 1]
    heads = clusters(count, among)
    members: dict[int, list[int]] = {}
    for place in left:
        members.setdefault(heads[place], []).append(place)
    return list(members.values())
