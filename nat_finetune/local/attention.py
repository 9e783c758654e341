"""Attention over slots and trunks, for transformers' modules (`slot_attention`) and for `blocks`."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from nat_finetune.local.kv_cache import Extend, Prefill, Trunk

ATTENTION = "nat_finetune_slots"
"""Name under which transformers finds `slot_attention`; without slots (in training) it is SDPA."""


class Unslotted(Protocol):
    """A forward without slots, in training: it knows itself what its tokens see."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, scale: float | None, window: int | None) -> Tensor:
        """[B, T, heads, head size]; arguments are [B, heads, T, head size], keys and values possibly of fewer heads."""


def attend(
    slots: Prefill | Extend,
    layer: int,
    query_B_T: Tensor,
    key_B_T: Tensor,
    value_B_T: Tensor,
    *,
    scale: float,
    window: int | None,
) -> Tensor:
    """Store a layer's new keys and values, and attend. [B, T, heads, head size]; returns the same shape as `query_B_T`."""
    keys, values = slots.update(key_B_T.transpose(1, 2), value_B_T.transpose(1, 2), layer)
    return attention_over(slots, layer, query_B_T.transpose(1, 2), keys, values, scale=scale, window=window)


def attention_over(
    slots: Prefill | Extend, layer: int, query: Tensor, keys: Tensor, values: Tensor, *, scale: float | None, window: int | None
) -> Tensor:
    """Attention of a pass, after its keys and values are stored: [B, T, heads, head size].

    Query heads that share key/value heads are folded into the query length: keys are never repeated.
    """
    rows, heads, length, size = query.shape
    scale = size**-0.5 if scale is None else scale
    if isinstance(slots, Prefill):
        mask = slots.mask(window)
        out = functional.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=heads != keys.shape[1]
        )
        return out.transpose(1, 2)
    groups = heads // keys.shape[1]
    folded = query.reshape(rows, keys.shape[1], groups * length, size)
    mask = slots.mask(window, query.dtype)
    if groups > 1 and length > 1:
        mask = mask.repeat(1, 1, groups, 1)
    if slots.trunks:
        out = _with_trunks(folded, keys, values, mask, scale, slots, layer)
    elif length > 1 or query.device.type != "cpu":
        out = functional.scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=scale)
    else:  # a CPU's SDPA is made for long queries: two products are up to 1.6 times as fast here
        weights = torch.matmul(folded * scale, keys.transpose(-1, -2)).add_(mask).softmax(-1)
        out = torch.matmul(weights, values)
    return out.reshape(rows, heads, length, out.shape[-1]).transpose(1, 2)


def slot_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    slots: Prefill | Extend | Unslotted | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention over slots, with transformers' attention interface; without slots, transformers' SDPA."""
    if slots is None:
        return _sdpa(module, query, key, value, attention_mask, scaling=scaling, sliding_window=sliding_window, **kwargs)
    if isinstance(slots, Prefill | Extend):
        layer: Any = module.layer_idx
        out = attention_over(slots, layer, query, key, value, scale=scaling, window=sliding_window)
        return out.contiguous(), None
    return slots.attend(query, key, value, scale=scaling, window=sliding_window).contiguous(), None


def _with_trunks(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float, slots: Extend, layer: int) -> Tensor:
    """Each row over its slot; then the rows of a trunk, all at once, over the trunk; the two joined by their normalisers.

    The joint softmax of two sets of scores is a mean of both results, weighted by their sums of exponentials.
    """
    query = query * scale
    out, top, total = _partial(query, keys, values, mask)
    for trunk, rows in slots.trunks:
        of_trunk = _over_trunk(query.index_select(0, rows), trunk, layer)
        mine = (out.index_select(0, rows), top.index_select(0, rows), total.index_select(0, rows))
        joint = torch.maximum(of_trunk[1], mine[1])
        theirs, own = (of_trunk[1] - joint).exp_(), (mine[1] - joint).exp_()
        out.index_copy_(0, rows, of_trunk[0] * theirs + mine[0] * own)
        total.index_copy_(0, rows, of_trunk[2] * theirs + mine[2] * own)
    return out.div_(total)


def _over_trunk(query: Tensor, trunk: Trunk, layer: int) -> tuple[Tensor, Tensor, Tensor]:
    """All rows' queries as one long query. [G, K, L, D] → as `_partial`."""
    rows, heads, length, size = query.shape
    keys, values = trunk.layers[layer]
    long = query.transpose(0, 1).reshape(heads, rows * length, size)
    parts = _partial(long, keys, values, None)
    out, top, total = (part.view(heads, rows, length, -1).transpose(0, 1) for part in parts)
    return out, top, total


def _partial(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Unnormalised attention: weighted values, the largest score, and the sum of exponentials relative to it."""
    scores = torch.matmul(query, keys.transpose(-1, -2))
    if mask is not None:
        scores = scores.add_(mask)
    top = scores.amax(-1, keepdim=True)
    weights = scores.sub_(top).exp_()
    return torch.matmul(weights, values), top, weights.sum(-1, keepdim=True)


def _sdpa(*args: Any, **kwargs: Any) -> tuple[Tensor, None]:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    result: tuple[Tensor, None] = sdpa_attention_forward(*args, **kwargs)
    return result


def register_attention() -> None:
    """Make ATTENTION known to transformers; doing so again changes nothing."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(ATTENTION, slot_attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
