"""Training and validation rows without leaks: whole clusters, and no context on both sides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from nat_finetune.data.exports.index import Digests, Mask
from nat_finetune.data.seeds import derive_seed
from nat_finetune.data.splits import Side, Tie, clusters

NONE, TRAIN, VALIDATION, TEST = 0, 1, 2, 3
OF_SIDE: Mapping[Side, int] = {"train": TRAIN, "validation": VALIDATION, "test": TEST}
Sides = NDArray[np.int8]


def joined(cluster: Digests, text: Digests, also: Iterable[tuple[int, int]] = ()) -> Digests:
    """Clusters that no context connects any more: those that share a text, or two texts of `also`, are one.

    Args:
        cluster: each item's cluster.
        text: each item's context, what it says.
        also: digests of texts that belong together.
    """
    names, of_item = np.unique(np.concatenate([cluster, text]), return_inverse=True)
    places = {int(name): place for place, name in enumerate(names)} if also else {}

    def ties() -> Iterator[Tie]:
        edges = np.unique(np.stack([of_item[: len(cluster)], of_item[len(cluster) :]], axis=1), axis=0)
        yield from (Tie((int(one), int(other)), "") for one, other in edges if one != other)
        yield from (Tie((places[one], places[other]), "") for one, other in also)

    heads = np.array(clusters(len(names), ties()), np.int64)
    return names[heads[of_item[: len(cluster)]]]


def drawn_sides(cluster: Digests, kept: Mask, share: float, *, seed: int) -> Sides:
    """Whole clusters for validation, up to `share` of the rows that are kept, in an order of the seed and their names only."""
    names, of_row = np.unique(cluster[kept], return_inverse=True)
    sizes = np.bincount(of_row, minlength=len(names))
    order = np.argsort(names ^ np.uint64(derive_seed(seed, "export_split")))
    room = round(share * int(kept.sum()))
    taken = np.zeros(len(names), np.bool_)
    for place in order:
        if sizes[place] <= room:
            taken[place] = True
            room -= int(sizes[place])
        if not room:
            break
    sides = np.zeros(len(kept), np.int8)
    sides[kept] = np.where(taken[of_row], VALIDATION, TRAIN)
    return sides


def given_sides(cluster: Digests, kept: Mask, sides: Mapping[int, int]) -> tuple[Sides, int]:
    """The sides that a manifest gives to clusters, and how many kept rows it does not know."""
    names, of_row = np.unique(cluster[kept], return_inverse=True)
    found = np.array([sides.get(int(name), NONE) for name in names], np.int8)
    made = np.zeros(len(kept), np.int8)
    made[kept] = found[of_row]
    return made, int((found[of_row] == NONE).sum())


def without_shared(sides: Sides, text: Digests) -> int:
    """Leave out what would leak: validation rows with a context that is trained, and rows with one of the test set."""
    before = int((sides != NONE).sum())
    sides[np.isin(text, text[sides == TEST]) & (sides != TEST)] = NONE
    sides[np.isin(text, text[sides == TRAIN]) & (sides == VALIDATION)] = NONE
    return before - int((sides != NONE).sum())
