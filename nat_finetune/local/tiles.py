"""Attention over trees of rows as batched products: what a run of queries sees is gathered, and nothing else is computed.

A sequence is cut into *tiles*: queries that stand one behind the other, and the keys that at least one of them sees. Tiles of
about equally many keys are worked off together, all heads at once, with query heads that share keys and values folded into
the queries. The backward pass is written out; it keeps the probabilities where they are few and computes them again elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from nat_finetune.data.layout import Part

_SIZE = 32
"""Queries of a tile: as the trees of an update's rows are, which are filled up to a multiple of it."""
_ALIKE = 0.7
"""Tiles are worked off together where the smallest number of keys is at least this share of the largest."""
_STEP = 16
"""Numbers of keys are filled up to a multiple of this: a third faster products (measured)."""
_VALUES = 400_000
"""Most scores held at once: what caches hold."""
_KEPT = 256
"""Probabilities are kept for the backward pass where a token sees no more keys than this on average."""

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Batch:
    """Tiles that are worked off together, with the numbers of heads that they are for."""

    queries: Tensor
    """`[tiles * key heads * shared * queries]`, indices of rows `[T * heads]`."""
    keys: Tensor
    """`[tiles * key heads * keys]`, indices of rows `[T * key heads]`."""
    mask: Tensor
    """`[tiles, 1, 1, queries, keys]`, what is added to the scores: 0 or minus infinity."""
    shape: tuple[int, int, int, int, int]
    """Tiles, key heads, query heads that share one, queries, keys."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """How a sequence is worked off with given numbers of heads."""

    batches: Sequence[_Batch]
    length: int
    """Of the sequence, filled up to whole tiles."""
    kept: bool
    """Whether probabilities are kept for the backward pass."""


def plan_tiles(parts: Sequence[Part], length: int, heads: int, key_heads: int) -> Tiles:
    """Cut a sequence of so many tokens into tiles."""
    begins = range(0, length, _SIZE)
    found = [_seen(parts, begin, min(begin + _SIZE, length)) for begin in begins]
    counts = [_filled(len(places)) for places, _ in found]
    order = sorted(range(len(begins)), key=lambda tile: -counts[tile])
    batches = []
    for chosen in _alike(order, counts, heads):
        first = np.asarray([begins[tile] for tile in chosen]).reshape(-1, 1, 1, 1)
        queries = (first + np.arange(_SIZE)) * heads + np.arange(heads).reshape(key_heads, -1, 1)
        batches.append(_batch(queries, [found[tile] for tile in chosen], counts[chosen[0]]))
    return Tiles(batches, len(begins) * _SIZE, sum(counts) <= _KEPT * len(begins))


def _batch(queries: Ints, found: Sequence[tuple[Ints, Bools]], count: int) -> _Batch:
    """Tiles with so many keys each, or fewer; queries are `[tiles, key heads, shared, queries]`."""
    tiles, key_heads = queries.shape[:2]
    places_N_K = np.zeros((tiles, count), np.int64)
    mask_N_T_K = np.full((tiles, 1, 1, _SIZE, count), -np.inf, np.float32)
    for index, (places, sees) in enumerate(found):
        places_N_K[index, : len(places)] = places
        mask_N_T_K[index, 0, 0, :, : len(places)][sees] = 0
    keys = places_N_K[:, None] * key_heads + np.arange(key_heads)[:, None]
    _, _, shared, size = queries.shape
    return _Batch(
        queries=torch.from_numpy(queries.ravel()),
        keys=torch.from_numpy(keys.ravel()),
        mask=torch.from_numpy(mask_N_T_K),
        shape=(tiles, key_heads, shared, size, count),
    )


def _filled(count: int) -> int:
    return -(-count // _STEP) * _STEP


def _seen(parts: Sequence[Part], begin: int, end: int) -> tuple[Ints, Bools]:
    """The places that some token of a range sees, `[K]`, and which of them each sees, `[T, K]`; beyond it, the first."""
    mine = [part for part in parts if part.begin < end and part.end > begin]
    ranges = [(part.first, min(part.behind, end) if part.causal else part.behind) for part in mine]
    places = np.unique(np.concatenate([np.arange(*span) for span in ranges]))
    sees = np.zeros((_SIZE, len(places)), np.bool_)
    for part, (first, behind) in zip(mine, ranges, strict=True):
        low, high = np.searchsorted(places, (first, behind))
        rows = np.arange(max(part.begin, begin), min(part.end, end))
        sees[rows - begin, low:high] |= places[low:high] <= rows[:, None] if part.causal else True
    sees[end - begin :, 0] = True
    return places, sees


def _alike(order: Sequence[int], counts: Sequence[int], heads: int) -> Iterator[list[int]]:
    """Tiles in their order, together where they are of about equally many keys, and not too many."""
    chosen: list[int] = []
    for tile in order:
        if chosen:
            most = counts[chosen[0]]
            if counts[tile] < _ALIKE * most or (len(chosen) + 1) * most * heads * _SIZE > _VALUES:
                yield chosen
                chosen = []
        chosen.append(tile)
    if chosen:
        yield chosen


def tiled_attention(query: Tensor, key: Tensor, value: Tensor, tiles: Tiles, scale: float) -> Tensor:
    """Attention of one sequence, `[1, T, heads, head size]`; arguments `[1, heads, T, head size]`, in float32 on a CPU."""
    out: Tensor = _Tiled.apply(query, key, value, tiles, scale)  # type: ignore[no-untyped-call]
    return out


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, tiles: Tiles, scale: float) -> Tensor:
        states = [_rows(whole, tiles.length) for whole in (query, key, value)]
        out = query.new_empty((len(states[0]), value.shape[-1]))
        kept, keep = [], tiles.kept and any(ctx.needs_input_grad)
        for batch in tiles.batches:
            queries, keys, values = _gathered(states, batch)
            weights = _weights(queries, keys, batch, scale)
            out.index_copy_(0, batch.queries, torch.bmm(weights, values).view(-1, values.shape[-1]))
            if keep:
                kept.append(weights)
        ctx.save_for_backward(query, key, value, *kept)
        ctx.tiles, ctx.scale = tiles, scale
        return out.view(1, tiles.length, query.shape[1], -1)[:, : query.shape[2]]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *kept = ctx.saved_tensors
        tiles, scale = ctx.tiles, ctx.scale
        states = [_rows(whole, tiles.length) for whole in (query, key, value)]
        grad_rows = _rows(grad.transpose(1, 2), tiles.length)
        sums = [torch.empty_like(states[0]), torch.zeros_like(states[1]), torch.zeros_like(states[2])]
        for index, batch in enumerate(tiles.batches):
            queries, keys, values = _gathered(states, batch)
            grads = grad_rows.index_select(0, batch.queries).view_as(queries)
            weights = kept[index] if kept else _weights(queries, keys, batch, scale)
            of_values = torch.bmm(weights.transpose(1, 2), grads)
            change = torch.bmm(grads, values.transpose(1, 2))
            torch.ops.aten._softmax_backward_data.out(change, weights, -1, torch.float32, grad_input=change)
            of_queries, of_keys = torch.empty_like(queries), torch.empty_like(keys)
            _scaled(change, keys, scale, of_queries)
            _scaled(change.transpose(1, 2), queries, scale, of_keys)
            size = queries.shape[-1]
            sums[0].index_copy_(0, batch.queries, of_queries.view(-1, size))
            sums[1].index_add_(0, batch.keys, of_keys.view(-1, size))
            sums[2].index_add_(0, batch.keys, of_values.view(-1, values.shape[-1]))
        shares = (
            rows.view(1, tiles.length, whole.shape[1], -1)[:, : whole.shape[2]].transpose(1, 2)
            for rows, whole in zip(sums, (query, key, value), strict=True)
        )
        return *shares, None, None


def _rows(states: Tensor, length: int) -> Tensor:
    """`[1, heads, T, head size]` to rows `[T * heads, head size]`, filled up to a length."""
    if states.shape[2] < length:
        states = functional.pad(states, (0, 0, 0, length - states.shape[2]))
    return states.transpose(1, 2).reshape(-1, states.shape[-1])


def _gathered(states: Sequence[Tensor], batch: _Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, `[tiles * key heads, shared * queries or keys, head size]`."""
    query, key, value = states
    tiles, key_heads, shared, size, count = batch.shape
    return (
        query.index_select(0, batch.queries).view(tiles * key_heads, shared * size, -1),
        key.index_select(0, batch.keys).view(tiles * key_heads, count, -1),
        value.index_select(0, batch.keys).view(tiles * key_heads, count, -1),
    )


def _weights(queries: Tensor, keys: Tensor, batch: _Batch, scale: float) -> Tensor:
    """Probabilities, `[tiles * key heads, shared * queries, keys]`."""
    scores = queries.new_empty((*queries.shape[:2], keys.shape[1]))
    _scaled(queries, keys.transpose(1, 2), scale, scores)
    scores.view(batch.shape).add_(batch.mask)
    torch.ops.aten._softmax.out(scores, -1, False, out=scores)
    return scores


def _scaled(left: Tensor, right: Tensor, scale: float, out: Tensor) -> None:
    torch.baddbmm(out, left, right, beta=0, alpha=scale, out=out)
