"""Attention of training over sequences that hold trees of rows: nothing that no token sees is computed.

On a CPU short rows go by `tiles`, and of long ones each `Part` of the layout is one call of torch's flash kernel; results of
parts that the same tokens see are joined by their log-normalisers, and the backward pass of a part needs no more than the
joint result (as in arXiv:2205.14135, section B.2, whose tiles these parts are). Elsewhere, and where a layer's window is
shorter than its rows, a mask says what is seen.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from nat_finetune.data.layout import Part, seen
from nat_finetune.local.tiles import Tiles, plan_tiles, tiled_attention

_log = logging.getLogger(__name__)
_TOLERANCE = 1e-4
_TILED = 256
"""Tiles are the faster way where a token sees fewer keys than this on average (measured)."""


class Branches:
    """Implements `attention.Unslotted` for one micro-batch."""

    def __init__(self, parts: Sequence[Part], positions_L_T: Tensor) -> None:
        self._parts = parts
        self._positions_L_T = positions_L_T
        self._reach = int(positions_L_T.max()) + 1
        self._masks: dict[int | None, Tensor] = {}
        self._tiles: dict[tuple[int, int], Tiles] = {}
        pairs = sum((part.end - part.begin) * (part.behind - part.first) // (1 + part.causal) for part in parts)
        self._short = pairs < _TILED * positions_L_T.numel()

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, scale: float | None, window: int | None) -> Tensor:
        """Attention, `[L, T, heads, head size]`; arguments as SDPA has them, keys and values possibly of fewer heads."""
        whole = window is None or window >= self._reach
        if whole and len(query) == 1 and query.device.type == "cpu":
            given = query.shape[-1] ** -0.5 if scale is None else scale
            if self._short and query.dtype is torch.float32 and _is_right(_by_tiles):
                return tiled_attention(query, key, value, self._plan(query, key), given)
            if _is_right(_by_parts):
                return _by_parts(query, key, value, self._parts, given)
        key, value = (_repeated(states, query) for states in (key, value))
        mask = self._mask(None if whole else window)
        out = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
        return out.transpose(1, 2)

    def _plan(self, query: Tensor, key: Tensor) -> Tiles:
        """Made by the first layer, used by all."""
        heads = query.shape[1], key.shape[1]
        if heads not in self._tiles:
            self._tiles[heads] = plan_tiles(self._parts, query.shape[2], *heads)
        return self._tiles[heads]

    def _mask(self, window: int | None) -> Tensor:
        """`[L, 1, T, T]`, true where a token sees another; the window counts positions in the row, not in the tree."""
        if window not in self._masks:
            shape, positions_L_T = self._positions_L_T.shape, self._positions_L_T
            mask_L_T_T = torch.from_numpy(seen(self._parts, (shape[0], shape[1]))).to(positions_L_T.device)
            if window is not None:
                mask_L_T_T &= positions_L_T[:, :, None] - positions_L_T[:, None, :] < window
            self._masks[window] = mask_L_T_T[:, None]
        return self._masks[window]


class _Parts(torch.autograd.Function):
    """One sequence; `[1, heads, T, head size]` to `[1, T, heads, head size]`."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, parts: Sequence[Part], scale: float) -> Tensor:
        _, heads, length, _ = query.shape
        key_kept, value_kept = key, value
        key, value = _repeated(key, query), _repeated(value, query)
        out = query.new_empty((1, length, heads, value.shape[-1])).transpose(1, 2)
        normaliser = torch.full((1, heads, length), -torch.inf, dtype=torch.float32)
        for part in parts:
            mine, theirs = slice(part.begin, part.end), slice(part.first, part.behind)
            found, total = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                query[:, :, mine], key[:, :, theirs], value[:, :, theirs], 0.0, part.causal, scale=scale
            )
            if part.causal:  # every token's first part
                out[:, :, mine], normaliser[:, :, mine] = found, total
                continue
            before = normaliser[:, :, mine]
            joint = torch.logaddexp(before, total)
            out[:, :, mine].mul_((before - joint).exp_()[..., None]).addcmul_(found, (total - joint).exp_()[..., None])
            normaliser[:, :, mine] = joint
        ctx.save_for_backward(query, key_kept, value_kept, out, normaliser)
        ctx.parts, ctx.scale = parts, scale
        return out.transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key_kept, value_kept, out, normaliser = ctx.saved_tensors
        key, value = _repeated(key_kept, query), _repeated(value_kept, query)
        grad = grad.transpose(1, 2)
        sums = [torch.zeros_like(whole, memory_format=torch.contiguous_format) for whole in (query, key, value)]
        for part in ctx.parts:
            mine, theirs = slice(part.begin, part.end), slice(part.first, part.behind)
            found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                grad[:, :, mine],
                query[:, :, mine],
                key[:, :, theirs],
                value[:, :, theirs],
                out[:, :, mine],
                normaliser[:, :, mine],
                0.0,
                part.causal,
                scale=ctx.scale,
            )
            for total, where, share in zip(sums, (mine, theirs, theirs), found, strict=True):
                total[:, :, where] += share
        shared = key_kept.shape[1]
        if shared == query.shape[1]:
            return *sums, None, None
        return sums[0], *(whole.view(1, shared, -1, *whole.shape[2:]).sum(2) for whole in sums[1:]), None, None


def _repeated(states: Tensor, query: Tensor) -> Tensor:
    """Keys or values for every query head."""
    groups = query.shape[1] // states.shape[1]
    return states if groups == 1 else states.repeat_interleave(groups, dim=1)


def _by_parts(query: Tensor, key: Tensor, value: Tensor, parts: Sequence[Part], scale: float) -> Tensor:
    out: Tensor = _Parts.apply(query, key, value, parts, scale)  # type: ignore[no-untyped-call]
    return out


def _by_tiles(query: Tensor, key: Tensor, value: Tensor, parts: Sequence[Part], scale: float) -> Tensor:
    return tiled_attention(query, key, value, plan_tiles(parts, query.shape[2], query.shape[1], key.shape[1]), scale)


@functools.cache
def _is_right(way: Callable[[Tensor, Tensor, Tensor, Sequence[Part], float], Tensor]) -> bool:
    """Whether this torch's kernels can be called in that way, and are right: held against a mask, once."""
    parts = (Part(0, 5, 0, 5, True), Part(5, 8, 5, 8, True), Part(8, 10, 8, 10, True), Part(5, 10, 0, 4, False))
    generator = torch.Generator().manual_seed(0)
    query, key, value, weight = (torch.randn((1, 2, 10, 16), generator=generator, requires_grad=i < 3) for i in range(4))
    mask = torch.from_numpy(seen(parts, (1, 10)))
    try:
        with torch.enable_grad():
            found = way(query, key, value, parts, 0.25).transpose(1, 2)
            expected = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=0.25)
            gradients = [torch.autograd.grad((out * weight).sum(), (query, key, value)) for out in (found, expected)]
    except (RuntimeError, AttributeError) as error:
        _log.warning("attention of updates goes another way: torch's kernels can't be called (%s)", str(error).splitlines()[0])
        return False
    pairs = [(found, expected), *zip(*gradients, strict=True)]
    difference = max(float(np.abs((a - b).detach().numpy()).max()) for a, b in pairs)
    if not difference <= _TOLERANCE:
        _log.warning("attention of updates goes another way: the results of torch's kernels differ by %.2g", difference)
    return difference <= _TOLERANCE
