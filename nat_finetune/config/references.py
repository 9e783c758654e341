"""Names in one section that must be entries of another: checked all at once, before anything is made."""

from __future__ import annotations

from collections.abc import Iterable

from nat_finetune.config.component import Reference
from nat_finetune.config.nodes import Node, dotted, place
from nat_finetune.config.problems import find, nearest
from nat_finetune.config.shape import Spot
from nat_finetune.errors import Problem

_PATHS: dict[str, tuple[str, ...]] = {"evaluators": ("eval", "evaluators")}


def dangling(tree: Node, spots: Iterable[Spot]) -> list[Problem]:
    """A problem for each reference to an entry that there is not."""
    return [problem for spot in spots for mark in spot.shape.marks if (problem := _check(tree, spot, mark)) is not None]


def _check(tree: Node, spot: Spot, mark: object) -> Problem | None:
    name = spot.node.value
    if not isinstance(mark, Reference) or not isinstance(name, str) or spot.node.problem is not None:
        return None
    known = [*mark.also, *_entries(tree, mark.section)]
    if name in known:
        return None
    section = ".".join(_PATHS.get(mark.section, (mark.section,)))
    hint = nearest(name, known) or (f"known: {', '.join(known)}" if known else f"`{section}` has no entries")
    return place(Problem(f"{section} has no entry {spot.node.shown()}", key=dotted(spot.path), hint=hint), spot.node.mark)


def _entries(tree: Node, section: str) -> list[str]:
    path = _PATHS.get(section, (section,))
    return list(find(tree, path).mapping) if _is_there(tree, path) else []


def _is_there(tree: Node, path: tuple[str, ...]) -> bool:
    node = tree
    for part in path:
        if part not in node.mapping:
            return False
        node = node.mapping[part]
    return True
