"""The parts of a usual decoder layer, read from transformers' modules: for `blocks`, which samples, and `trained_blocks`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nat_finetune.errors import BackendError

BLOCKS = ("LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer")
"""Named, not guessed: a short comparison can't see everything in which another block might differ."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's modules and sizes. Its linear layers are read when they are needed: an adapter may come around them."""

    index: int
    attention: Any
    mlp: Any
    before: Any
    """Normalisation of what attention reads."""
    between: Any
    """Normalisation of what the MLP reads."""
    query_norm: Any
    """Of each head's queries; None where there is none."""
    key_norm: Any
    size: int
    """Of a head."""
    heads: int
    shared: int
    """Heads of keys and values."""
    scale: float
    window: int | None
    """Positions that it looks back over; None for all."""

    @property
    def of_input(self) -> tuple[Any, Any, Any]:
        """The linear layers of queries, keys and values."""
        return self.attention.q_proj, self.attention.k_proj, self.attention.v_proj

    @property
    def of_output(self) -> tuple[Any, Any, Any, Any]:
        """Those of attention's result, gate, up and down."""
        return self.attention.o_proj, self.mlp.gate_proj, self.mlp.up_proj, self.mlp.down_proj


def layers_of(decoder: Any) -> list[Layer]:
    """Read a decoder's layers. Raises BackendError where one is none of BLOCKS."""
    kinds = {type(layer).__name__ for layer in decoder.layers}
    if not kinds <= set(BLOCKS):
        raise BackendError(f"its blocks are {', '.join(sorted(kinds))}")
    return [_read(layer, index) for index, layer in enumerate(decoder.layers)]


def _read(layer: Any, index: int) -> Layer:
    attention = layer.self_attn
    parts = dict(attention.named_children())
    return Layer(
        index=index,
        attention=attention,
        mlp=layer.mlp,
        before=layer.input_layernorm,
        between=layer.post_attention_layernorm,
        query_norm=parts.get("q_norm"),
        key_norm=parts.get("k_norm"),
        size=int(attention.head_dim),
        heads=int(attention.config.num_attention_heads),
        shared=int(attention.config.num_key_value_heads),
        scale=float(attention.scaling),
        window=_window(attention, index),
    )


def _window(attention: Any, index: int) -> int | None:
    config = attention.config
    found = config.to_dict()
    kinds = found.get("layer_types")
    if kinds is not None and kinds[index] != "sliding_attention":
        return None
    window: int | None = found.get("sliding_window")
    return window


def turns(rotary: Any, states: Tensor, positions_B_T: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines of all positions, `[B · T, 1, head size]` each; `states` lend their type and device."""
    rows = len(positions_B_T)
    found: Sequence[Tensor] = rotary(states, positions_B_T)
    cos, sin = (part.expand(rows, -1, -1).reshape(-1, 1, part.shape[-1]) for part in found)
    return cos, sin


def rotated(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions (arXiv:2104.09864) as these models pair dimensions: i with i + half. [N, heads, head size]."""
    half = states.shape[-1] // 2
    out = torch.mul(states, cos).contiguous()  # as rows, however `states` lie
    out[..., :half].addcmul_(states[..., half:], sin[..., :half], value=-1)
    out[..., half:].addcmul_(states[..., :half], sin[..., half:])
    return out
