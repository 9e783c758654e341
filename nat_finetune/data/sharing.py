"""What rows have in common, so that a model reads it once.

The *input* of a row is what a model must read of it: everything before its last trained token. A causal model's hidden states
of a beginning do not depend on what follows. So

* a row whose input is the beginning of another's (or equal to it) needs no input of its own;
* inputs that begin alike can be read as one sequence, a *tree*: the common beginning once, then what each adds. A token of a
  tree sees the tokens on its own path only (a matter for attention), at the position that it has in its own row.

Eight answers to one prompt cost one prompt; prompts that begin with the same examples cost these once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WORTHWHILE = 3
"""Inputs are joined to a tree where at least a third of the next one is shared."""

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Tree:
    """Inputs that are read as one sequence; mostly just one input."""

    leaves: tuple[int, ...]
    """The rows whose inputs they are, sorted by tokens."""
    shared: tuple[int, ...]
    """How many tokens each begins with that the one before it begins with too; 0 for the first."""
    length: int
    """Tokens of the tree."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Which rows share a forward pass; the numbers are those of `batches.Rows`."""

    rows: tuple[int, ...]
    leaves: tuple[int, ...]
    """For each row the row whose input begins with its own."""
    trees: tuple[Tree, ...]
    units: tuple[int, ...]
    """Places, in the given sequence of units, of those that are in this micro-batch."""
    packed: bool = False
    """Whether all trees stand in one sequence."""
    multiple: int = 1
    """Of how many tokens the length of that sequence is a multiple."""


def plan_units(
    inputs: Mapping[int, Ints],
    units: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    tree_tokens: int,
    packed: bool,
    multiple: int,
) -> list[Plan]:
    """Sort units into micro-batches; see `batches.Rows.plans`. `inputs` are the rows' tokens up to their last trained one."""
    leaf_of, order = _leaves(inputs)
    trees = list(_trees([row for row in order if leaf_of[row] == row], inputs, tree_tokens))
    tree_of = {leaf: index for index, tree in enumerate(trees) for leaf in tree.leaves}
    of_units = [sorted({tree_of[leaf_of[row]] for row in unit}) for unit in units]
    lengths = [tree.length for tree in trees]

    def size(chosen: set[int]) -> int:
        sizes = [lengths[tree] for tree in chosen]
        return packed_size(sizes, multiple) if packed else len(sizes) * max(sizes)

    plans = []
    for chosen in _budgeted(_in_clusters(of_units, lengths), of_units, max_tokens, size):
        rows = tuple(dict.fromkeys(row for unit in chosen for row in units[unit]))
        used = dict.fromkeys(tree for unit in chosen for tree in of_units[unit])
        leaves = tuple(leaf_of[row] for row in rows)
        plans.append(Plan(rows, leaves, tuple(trees[tree] for tree in used), tuple(chosen), packed, multiple))
    return plans


def packed_size(lengths: Sequence[int], multiple: int) -> int:
    """Tokens of the one sequence that holds trees of these lengths, filled up to a multiple."""
    return -(-sum(lengths) // multiple) * multiple


def _leaves(inputs: Mapping[int, Ints]) -> tuple[dict[int, int], list[int]]:
    """For each row the row whose input begins with its own (mostly itself), and all rows sorted by their inputs."""
    # Big-endian bytes sort like the numbers, and a beginning is followed by what it begins.
    keys = {row: ids.astype(">u4").tobytes() for row, ids in inputs.items()}
    order = sorted(inputs, key=keys.__getitem__)
    leaf_of: dict[int, int] = {}
    following: int | None = None
    for row in reversed(order):
        begins = following is not None and keys[following].startswith(keys[row])
        leaf_of[row] = leaf_of[following] if begins and following is not None else row
        following = row
    return leaf_of, order


def _trees(leaves: Sequence[int], inputs: Mapping[int, Ints], tree_tokens: int) -> Iterator[Tree]:
    """Join neighbours that have much in common, up to `tree_tokens` tokens."""
    members: list[int] = []
    shared: list[int] = []
    length = 0
    for leaf in leaves:
        ids = inputs[leaf]
        common = _common(inputs[members[-1]], ids) if members and tree_tokens else 0
        if members and common * WORTHWHILE >= len(ids) and length + len(ids) - common <= tree_tokens:
            members.append(leaf)
            shared.append(common)
            length += len(ids) - common
            continue
        if members:
            yield Tree(tuple(members), tuple(shared), length)
        members, shared, length = [leaf], [0], len(ids)
    if members:
        yield Tree(tuple(members), tuple(shared), length)


def _common(first: Ints, second: Ints) -> int:
    """How many tokens both begin with."""
    size = min(len(first), len(second))
    different = first[:size] != second[:size]
    return int(different.argmax()) if different.any() else size


def _in_clusters(of_units: Sequence[Sequence[int]], lengths: Sequence[int]) -> list[int]:
    """Units in an order that keeps those together which read the same trees, short ones first."""
    head = {tree: tree for trees in of_units for tree in trees}

    def find(tree: int) -> int:
        while head[tree] != tree:
            head[tree] = head[head[tree]]
            tree = head[tree]
        return tree

    for trees in of_units:
        for other in trees[1:]:
            head[find(other)] = find(trees[0])
    longest: dict[int, int] = {}
    for tree in head:
        longest[find(tree)] = max(longest.get(find(tree), 0), lengths[tree])

    def key(unit: int) -> tuple[int, int, Sequence[int]]:
        cluster = find(of_units[unit][0])
        return longest[cluster], cluster, of_units[unit]

    return sorted(range(len(of_units)), key=key)


def _budgeted(
    order: Sequence[int], of_units: Sequence[Sequence[int]], max_tokens: int, size: Callable[[set[int]], int]
) -> Iterator[list[int]]:
    """Cut the order where the trees of a micro-batch would exceed the budget."""
    chosen: list[int] = []
    used: set[int] = set()
    for unit in order:
        more = used | set(of_units[unit])
        if chosen and more != used and size(more) > max_tokens:  # what is read anyway may be used by more units
            yield chosen
            chosen, more = [], set(of_units[unit])
        chosen.append(unit)
        used = more
    if chosen:
        yield chosen
