"""Keys and values of many sequences in slots, and the attention that reads them.

One slot is one sequence; slots 0 … n-1 are in use, so that a decode step attends over a plain slice. Sequences have lengths
of their own: positions beyond a slot's length hold garbage that the mask hides and later tokens overwrite. The model's
forward is transformers' own: it calls `Pass.update` where it would call its cache, and `slot_attention` in place of SDPA.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

ATTENTION = "nat_finetune_slots"
"""Name under which transformers finds `slot_attention`; without slots (in training) it is SDPA."""

LENGTH_STEP = 32
"""Attention reads lengths rounded up to this, and slots grow by multiples of it."""


def round_up(length: int) -> int:
    """The next multiple of LENGTH_STEP."""
    return -(-length // LENGTH_STEP) * LENGTH_STEP


class SlotCache:
    """Keys and values per layer, [slots, positions, key/value heads, head size]; grows when asked to."""

    def __init__(self) -> None:
        self.slots = 0
        self.positions = 0
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def reserve(self, slots: int, positions: int, *, used: int) -> None:
        """Have room for this many slots and positions; the first `used` slots keep their content."""
        if slots <= self.slots and positions <= self.positions:
            return
        self.slots, self.positions = max(slots, self.slots), max(round_up(positions), self.positions)
        if used == 0:
            self._layers.clear()
            return
        for index, (keys, values) in self._layers.items():
            self._layers[index] = (self._grown(keys, used), self._grown(values, used))

    def clear(self) -> None:
        """Give the memory back."""
        self.slots = self.positions = 0
        self._layers.clear()

    def copy(self, sources: torch.Tensor, targets: torch.Tensor, length: int) -> None:
        """Copy the first `length` positions of slots onto others (no slot is both)."""
        for keys, values in self._layers.values():
            keys[targets, :length] = keys[sources, :length]
            values[targets, :length] = values[sources, :length]

    def spread(self, sources: torch.Tensor, length: int) -> None:
        """Let slot i hold the first `length` positions of slot `sources[i]`; what else the slots held is lost."""
        for index, (keys, values) in self._layers.items():
            self._layers[index] = (self._spread(keys, sources, length), self._spread(values, sources, length))
        self.slots = len(sources)

    def layer(self, index: int, like_key: torch.Tensor, like_value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one layer, made on its first use. `like_*`: [B, heads, T, head size]."""
        if index not in self._layers:
            self._layers[index] = (self._empty(like_key), self._empty(like_value))
        return self._layers[index]

    def _empty(self, like: torch.Tensor) -> torch.Tensor:
        # zeros, not empty: a masked position has probability 0, but 0 x NaN would be NaN
        return like.new_zeros((self.slots, self.positions, like.shape[1], like.shape[3]))

    def _spread(self, old: torch.Tensor, sources: torch.Tensor, length: int) -> torch.Tensor:
        new = old.new_zeros((len(sources), *old.shape[1:]))
        new[:, :length] = old[sources, :length]
        return new

    def _grown(self, old: torch.Tensor, used: int) -> torch.Tensor:
        new = old.new_zeros((self.slots, self.positions, *old.shape[2:]))
        new[:used, : old.shape[1]] = old[:used]
        return new


class Prefill:
    """A forward over whole prompts, right-padded, written to the slots from `first` on."""

    def __init__(self, cache: SlotCache, first: int, positions_B_T: torch.Tensor) -> None:
        self._cache = cache
        self._first = first
        self._positions_B_T = positions_B_T
        self._masks: dict[int, torch.Tensor] = {}

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store a layer's keys and values; attention needs no others. [B, heads, T, head size]."""
        keys, values = self._cache.layer(layer, key, value)
        rows = slice(self._first, self._first + key.shape[0])
        keys[rows, : key.shape[2]] = key.transpose(1, 2)
        values[rows, : key.shape[2]] = value.transpose(1, 2)
        return key, value

    def get_seq_length(self, layer: int = 0) -> int:
        """Asked for by models that make positions themselves."""
        return 0

    def mask(self, window: int | None) -> torch.Tensor | None:
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
    """A forward over T further tokens of slots 0 … B-1, which start at lengths of their own (T = 1: a decode step)."""

    def __init__(self, cache: SlotCache, positions_B_T: torch.Tensor, reach: int) -> None:
        """`reach`: no position of this pass is beyond it."""
        self._cache = cache
        self._positions_B_T = positions_B_T
        self._reach = min(round_up(reach), cache.positions)
        rows = torch.arange(positions_B_T.shape[0], device=positions_B_T.device)
        self._flat = (rows[:, None] * cache.positions + positions_B_T).reshape(-1)
        self._masks: dict[int | None, torch.Tensor] = {}

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store a layer's new keys and values; returns all of these slots', [B, heads, reach, head size]."""
        keys, values = self._cache.layer(layer, key, value)
        keys.view(-1, *keys.shape[2:]).index_copy_(0, self._flat, key.transpose(1, 2).reshape(-1, *keys.shape[2:]))
        values.view(-1, *values.shape[2:]).index_copy_(0, self._flat, value.transpose(1, 2).reshape(-1, *values.shape[2:]))
        rows = key.shape[0]
        return keys[:rows, : self._reach].transpose(1, 2), values[:rows, : self._reach].transpose(1, 2)

    def get_seq_length(self, layer: int = 0) -> int:
        """Asked for by models that make positions themselves."""
        return 0

    def mask(self, window: int | None) -> torch.Tensor:
        """[B, 1, T, reach], true where a token sees a position of its slot."""
        if window not in self._masks:
            index = torch.arange(self._reach, device=self._positions_B_T.device)
            distance = self._positions_B_T[:, :, None] - index
            seen = distance >= 0 if window is None else (distance >= 0) & (distance < window)
            self._masks[window] = seen[:, None]
        return self._masks[window]


def slot_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    slots: Prefill | Extend | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over slots, with transformers' attention interface; without slots, transformers' SDPA.

    Query heads that share key/value heads are folded into the query length of a decode step: keys are never repeated.
    """
    if slots is None:
        return _sdpa(module, query, key, value, attention_mask, scaling=scaling, sliding_window=sliding_window, **kwargs)
    mask = slots.mask(sliding_window)
    rows, heads, length, size = query.shape
    groups = heads // key.shape[1]
    if groups > 1 and length == 1:
        query = query.reshape(rows, key.shape[1], groups, size)
    elif groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    out = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling)
    return out.reshape(rows, heads, length, out.shape[-1]).transpose(1, 2).contiguous(), None


def _sdpa(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, None]:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    result: tuple[torch.Tensor, None] = sdpa_attention_forward(*args, **kwargs)
    return result


def register_attention() -> None:
    """Make ATTENTION known to transformers; doing so again changes nothing."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(ATTENTION, slot_attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
