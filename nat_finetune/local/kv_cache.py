"""Keys and values of many sequences in slots, and what a forward does with them.

One slot is one sequence; slots 0 … n-1 are in use, so that a decode step attends over a plain slice. Sequences have lengths
of their own: positions beyond a slot's length hold garbage that the mask hides and later tokens overwrite. A long beginning
that several sequences share is a `Trunk`, kept once beside the slots, which then hold only what follows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

LENGTH_STEP = 16
"""Attention reads lengths rounded up to this, and slots grow by multiples of it."""

Layers = list[tuple[Tensor, Tensor]]
"""Keys and values of each layer, [key/value heads, T, head size], of one run of tokens."""


def round_up(length: int) -> int:
    """The next multiple of LENGTH_STEP."""
    return -(-length // LENGTH_STEP) * LENGTH_STEP


@dataclass(frozen=True, slots=True, eq=False)
class Trunk:
    """Keys and values of a beginning that sequences share."""

    layers: Layers
    length: int
    """Tokens."""

    @property
    def bytes(self) -> int:
        """Memory that it takes."""
        return size_of(self.layers)


def size_of(layers: Layers) -> int:
    """Bytes of keys and values."""
    return sum(keys.nbytes + values.nbytes for keys, values in layers)


class SlotCache:
    """Keys and values per layer, [slots, key/value heads, positions, head size].

    Positions stay near what is used, growing by an eighth: a CPU's products want all of a slot, and copy what is a part of it.
    """

    def __init__(self) -> None:
        self.slots = 0
        self.positions = 0
        self.place = 0
        """Another number whenever the memory is at another address."""
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def reserve(self, slots: int, positions: int, *, used: int) -> None:
        """Have room for this many slots and positions; the first `used` slots keep their content."""
        loose = used == 0 and self.positions > round_up(positions) + positions // 4
        if slots <= self.slots and positions <= self.positions and not loose:
            return
        self.place += 1
        if used == 0:
            self.slots, self.positions = max(slots, self.slots), round_up(positions)
            self._layers.clear()
            return
        if slots > self.slots:
            self.slots = max(slots, self.slots + self.slots // 2)
        if positions > self.positions:
            self.positions = round_up(max(positions, self.positions + self.positions // 8))
        for index, (keys, values) in self._layers.items():
            self._layers[index] = (self._grown(keys, used), self._grown(values, used))

    def clear(self) -> None:
        """Give the memory back."""
        self.slots = self.positions = 0
        self.place += 1
        self._layers.clear()

    def copy(self, sources: Tensor, targets: Tensor, length: int) -> None:
        """Copy the first `length` positions of slots onto others (no slot is both)."""
        for keys, values in self._layers.values():
            keys[targets, :, :length] = keys[sources, :, :length]
            values[targets, :, :length] = values[sources, :, :length]

    def spread(self, sources: Tensor, length: int) -> None:
        """Let slot i hold the first `length` positions of slot `sources[i]`; what else the slots held is lost."""
        self.place += 1
        for index, (keys, values) in self._layers.items():
            self._layers[index] = (self._spread(keys, sources, length), self._spread(values, sources, length))
        self.slots = len(sources)

    def read(self, slot: int, length: int) -> Layers:
        """A copy of the first `length` positions of a slot."""
        return [
            (keys[slot, :, :length].clone(), values[slot, :, :length].clone())
            for _, (keys, values) in sorted(self._layers.items())
        ]

    def write(self, slot: int, start: int, layers: Layers, length: int) -> None:
        """Put the first `length` positions of `layers` into a slot, from position `start` on."""
        for index, (new_keys, new_values) in enumerate(layers):
            keys, values = self.layer(index, new_keys[None], new_values[None])
            keys[slot, :, start : start + length] = new_keys[:, :length]
            values[slot, :, start : start + length] = new_values[:, :length]

    def layer(self, index: int, like_key: Tensor, like_value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer, made on its first use. `like_*`: [B, heads, T, head size]."""
        if index not in self._layers:
            self._layers[index] = (self._empty(like_key), self._empty(like_value))
        return self._layers[index]

    def _empty(self, like: Tensor) -> Tensor:
        # zeros, not empty: a masked position has probability 0, but 0 x NaN would be NaN
        return like.new_zeros((self.slots, like.shape[1], self.positions, like.shape[3]))

    def _spread(self, old: Tensor, sources: Tensor, length: int) -> Tensor:
        new = old.new_zeros((len(sources), *old.shape[1:]))
        new[:, :, :length] = old[sources, :, :length]
        return new

    def _grown(self, old: Tensor, used: int) -> Tensor:
        new = old.new_zeros((self.slots, old.shape[1], self.positions, old.shape[3]))
        new[:used, :, : old.shape[2]] = old[:used]
        return new


class Prefill:
    """A forward over whole prompts, right-padded, written to the slots from `first` on."""

    def __init__(self, cache: SlotCache, first: int, positions_B_T: Tensor) -> None:
        self._cache = cache
        self._first = first
        self._positions_B_T = positions_B_T
        self._masks: dict[int, Tensor] = {}

    def update(self, key: Tensor, value: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store a layer's keys and values; attention needs no others. [B, heads, T, head size]."""
        keys, values = self._cache.layer(layer, key, value)
        rows = slice(self._first, self._first + key.shape[0])
        keys[rows, :, : key.shape[2]] = key
        values[rows, :, : key.shape[2]] = value
        return key, value

    def get_seq_length(self, layer: int = 0) -> int:
        """Asked for by models that make positions themselves."""
        return 0

    def mask(self, window: int | None) -> Tensor | None:
        """None is plain causal: right padding is never seen by what stands before it."""
        length = self._positions_B_T.shape[1]
        if window is None or window >= length:
            return None
        if window not in self._masks:
            index = torch.arange(length, device=self._positions_B_T.device)
            distance = index[:, None] - index[None, :]
            self._masks[window] = ((distance >= 0) & (distance < window))[None, None]
        return self._masks[window]


class Extend:
    """A forward over T further tokens of the slots from `first` on, each from a place of its own on (T = 1: a decode step)."""

    def __init__(
        self,
        cache: SlotCache,
        places_B_T: Tensor,
        reach: int,
        *,
        first: int = 0,
        trunks: Sequence[tuple[Trunk, Tensor]] = (),
    ) -> None:
        """Describe the pass.

        Args:
            cache: the slots.
            places_B_T: the tokens' positions in their slots (without a trunk: in their sequences).
            reach: no place of this pass is beyond it.
            first: the first row's slot.
            trunks: shared beginnings, each with the rows that continue it; a row continues one at most.
        """
        self._cache = cache
        self._places_B_T = places_B_T
        part = min(round_up(reach), cache.positions)
        whole = places_B_T.device.type == "cpu" and places_B_T.shape[1] == 1 and cache.positions <= 2 * part
        self._reach = cache.positions if whole else part
        self._first = first
        self.trunks = trunks
        self._flat: dict[int, Tensor] = {}
        self._masks: dict[int | None, Tensor] = {}

    def update(self, key: Tensor, value: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store a layer's new keys and values; returns all of these slots', [B, heads, reach, head size]."""
        keys, values = self._cache.layer(layer, key, value)
        where = self._where(key.shape[1])
        for all_of, new in ((keys, key), (values, value)):
            all_of.view(-1, new.shape[3]).index_copy_(0, where, new.reshape(-1, new.shape[3]))
        rows = slice(self._first, self._first + key.shape[0])
        return keys[rows, :, : self._reach], values[rows, :, : self._reach]

    def get_seq_length(self, layer: int = 0) -> int:
        """Asked for by models that make positions themselves."""
        return 0

    def mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """[B, 1, T, reach]: 0 where a token sees a position of its slot, else -inf."""
        if window not in self._masks:
            index = torch.arange(self._reach, device=self._places_B_T.device)
            distance = self._places_B_T[:, :, None] - index
            seen = distance >= 0 if window is None else (distance >= 0) & (distance < window)
            mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf"))
            self._masks[window] = mask[:, None]
        return self._masks[window]

    def _where(self, heads: int) -> Tensor:
        """Index of each [row, head, token] among all positions of all slots."""
        if heads not in self._flat:
            device = self._places_B_T.device
            rows = torch.arange(self._first, self._first + len(self._places_B_T), device=device)
            lines = (rows[:, None] * heads + torch.arange(heads, device=device)) * self._cache.positions
            self._flat[heads] = (lines[:, :, None] + self._places_B_T[:, None]).reshape(-1)
        return self._flat[heads]
