"""Where the trees of a micro-batch stand in what a model reads, and which tokens see which.

Trees stand either one a sequence, padded on the right, or all behind one another in one sequence, which is filled up only to a
multiple that suits the matrix products. What its
tokens see is given in `Part`s: rectangles of queries and keys, which attention can work off one by one, so that nothing is
computed only to be masked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nat_finetune.data.sharing import Ints, Tree, packed_size

_COMMON = 2
"""Branches read a shared beginning together where all of them share at least one part in this many of the longest's."""


class Part(NamedTuple):
    """Tokens that see tokens; places in the flattened read ids, `[L * T]`."""

    begin: int
    """First token that sees."""
    end: int
    """Behind the last one."""
    first: int
    """First token that is seen."""
    behind: int
    """Behind the last one."""
    causal: bool
    """Each sees those up to itself only (then both ranges are the same); else each sees all."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What the model reads in a micro-batch."""

    ids_L_T: Ints
    positions_L_T: Ints
    parts: tuple[Part, ...] | None
    """None: each token sees all before it in its sequence, and itself."""
    paths: Mapping[int, Ints]
    """For each leaf where each of its tokens stands, in the flattened ids."""


def lay_out(trees: Sequence[Tree], inputs: Mapping[int, Ints], *, packed: bool, multiple: int = 1) -> Layout:
    """Lay trees out: what is shared stands where the first leaf that has it put it.

    `packed`: all in one sequence, filled up to a multiple of so many tokens.
    """
    lengths = [tree.length for tree in trees]
    size = packed_size(lengths, multiple) if packed else max(lengths)
    starts = np.cumsum([0, *lengths[:-1]]) if packed else np.arange(len(trees)) * size
    shape = (1 if packed else len(trees), size)
    ids, positions = np.zeros(shape[0] * size, np.int64), np.tile(np.arange(size), shape[0])
    paths: dict[int, Ints] = {}
    parts: list[Part] = []
    for tree, start in zip(trees, starts.tolist(), strict=True):
        path, begin = np.zeros(0, np.int64), start
        branches: list[_Branch] = []
        for leaf, shared in zip(tree.leaves, tree.shared, strict=True):
            tokens = inputs[leaf]
            end = begin + len(tokens) - shared
            branches.append(_Branch(begin, end, _runs(path[:shared])))
            path = np.concatenate([path[:shared], np.arange(begin, end)])
            ids[begin:end] = tokens[shared:]
            positions[begin:end] = np.arange(shared, len(tokens))
            paths[leaf] = path
            begin = end
        parts += _parts(branches)
    filled_from = sum(lengths)
    if packed and filled_from < size:  # a sequence of its own: what no part covers would be undefined, also in gradients
        positions[filled_from:] = np.arange(size - filled_from)
        parts.append(Part(filled_from, size, filled_from, size, causal=True))
    plain = not packed and all(len(tree.leaves) == 1 for tree in trees)
    return Layout(ids.reshape(shape), positions.reshape(shape), None if plain else tuple(parts), paths)


def seen(parts: Sequence[Part], shape: tuple[int, int]) -> NDArray[np.bool_]:
    """`[L, T, T]`, true where a token sees another. Padding sees itself: attention over nothing is 0 / 0."""
    count, size = shape
    sees_L_T_T = np.tile(np.eye(size, dtype=np.bool_), (count, 1, 1))
    for part in parts:
        row, base = part.begin // size, part.begin // size * size
        block = sees_L_T_T[row, part.begin - base : part.end - base, part.first - base : part.behind - base]
        block |= np.tri(*block.shape, dtype=np.bool_) if part.causal else True
    return sees_L_T_T


class _Branch(NamedTuple):
    """What a leaf adds to its tree."""

    begin: int
    end: int
    runs: list[tuple[int, int]]
    """Where the beginning stands that it shares, run by run."""


def _runs(path: Ints) -> list[tuple[int, int]]:
    """Consecutive places as ranges."""
    if not len(path):
        return []
    breaks = np.flatnonzero(np.diff(path) != 1) + 1
    edges = [0, *breaks.tolist(), len(path)]
    return [(int(path[a]), int(path[b - 1]) + 1) for a, b in pairwise(edges)]


def _parts(branches: Sequence[_Branch]) -> Iterator[Part]:
    """Every branch over itself; neighbours over the beginning that all of them share; each over what else it shares."""
    for branch in branches:
        if branch.begin < branch.end:
            yield Part(branch.begin, branch.end, branch.begin, branch.end, causal=True)
    for group in _groups([branch for branch in branches if branch.runs and branch.begin < branch.end]):
        first, behind = group[0].runs[0][0], min(branch.runs[0][1] for branch in group)
        yield Part(group[0].begin, group[-1].end, first, behind, causal=False)
        for branch in group:
            for start, end in [(behind, branch.runs[0][1]), *branch.runs[1:]]:
                if start < end:
                    yield Part(branch.begin, branch.end, start, end, causal=False)


def _groups(branches: Sequence[_Branch]) -> Iterator[list[_Branch]]:
    """Neighbours whose shared beginnings start at the same place and are of about the same length."""
    group: list[_Branch] = []
    for branch in branches:
        ends = [member.runs[0][1] - member.runs[0][0] for member in [*group, branch]]
        alike = group and branch.runs[0][0] == group[0].runs[0][0] and min(ends) * _COMMON >= max(ends)
        if group and not (alike and branch.begin == group[-1].end):
            yield group
            group = []
        group.append(branch)
    if group:
        yield group
