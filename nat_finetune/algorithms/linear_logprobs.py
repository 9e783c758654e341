"""Log-probabilities straight from hidden states and the weights of an output layer, vocabulary tile by tile.

The logits of a tile live only until the next one: their softmax is gathered on the way (online, as in arXiv:1805.02867), and
so is the gradient to the hidden states, which needs no second pass in the backward direction, as a token's log-probability is
one number whose gradient is only scaled there. Weights that train cost one more product of hidden states and weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""`x [N, K]`, `weight [M, K]`, bias `[M]` or None to `[N, M]`; either may be a view."""

_ROWS = 1024
"""Most tokens of a tile."""


@dataclass(frozen=True, slots=True)
class Bend:
    """What happens to an output layer's logits before the softmax, in this order."""

    scale: float = 1.0
    softcap: float | None = None
    """`softcap * tanh(logits / softcap)`."""
    temperature: float = 1.0

    @property
    def factor(self) -> float:
        """By which logits are multiplied, where no softcap bends them."""
        return self.scale / self.temperature


@dataclass(slots=True)
class _Softmax:
    """Sums over the tiles so far, relative to the largest logit so far; `[N]` each."""

    top_N: Tensor
    total_N: Tensor
    weighted_N: Tensor
    """Of exponential times logit, for the entropy."""

    @classmethod
    def empty(cls, hidden_N_D: Tensor) -> _Softmax:
        zeros = torch.zeros(len(hidden_N_D), dtype=_wide(hidden_N_D), device=hidden_N_D.device)
        return cls(zeros - torch.inf, zeros, zeros)

    def add(self, logits_N_W: Tensor) -> tuple[Tensor, Tensor]:
        """Take in a tile, which is overwritten: returns its exponentials, and what earlier sums were multiplied by."""
        top_N = torch.maximum(self.top_N, logits_N_W.amax(1))
        shrunk_N = (self.top_N - top_N).exp_()
        relative_N_W = logits_N_W.sub_(top_N[:, None])
        exponentials_N_W = relative_N_W.exp()
        # Of logits relative to the new top: what stood relative to the old one moves by the difference.
        moved_N = torch.where(self.total_N > 0, self.total_N * (self.top_N - top_N), 0.0)
        self.weighted_N = (self.weighted_N + moved_N) * shrunk_N + torch.linalg.vecdot(exponentials_N_W, relative_N_W)
        self.total_N = self.total_N * shrunk_N + exponentials_N_W.sum(1)
        self.top_N = top_N
        return exponentials_N_W, shrunk_N


def linear_logprobs(
    hidden_N_D: Tensor,
    weight_V_D: Tensor,
    bias_V: Tensor | None,
    ids_N: Tensor,
    *,
    bend: Bend,
    tile_values: int,
    product: Product = functional.linear,
) -> tuple[Tensor, Tensor]:
    """Log-probability (nats, with gradient) of one token after each hidden state, and the entropy of all; `[N]`, float32.

    Never holds more than `tile_values` logits (and as many exponentials) at once.
    """
    logprobs_N, entropy_N = _LinearLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden_N_D, weight_V_D, bias_V, ids_N, bend, tile_values, product
    )
    return logprobs_N, entropy_N


class _LinearLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_N_D: Tensor,
        weight_V_D: Tensor,
        bias_V: Tensor | None,
        ids_N: Tensor,
        bend: Bend,
        tile_values: int,
        product: Product,
    ) -> tuple[Tensor, Tensor]:
        tiles = _Tiles(weight_V_D, bias_V, bend, tile_values, product)
        parts = [
            tiles.scored(hidden_C_D, ids_C, gradient=ctx.needs_input_grad[0])
            for hidden_C_D, ids_C in zip(torch.split(hidden_N_D, _ROWS), torch.split(ids_N, _ROWS), strict=True)
        ]
        logprobs_N, entropy_N, normaliser_N = (torch.cat(values) for values in list(zip(*parts, strict=True))[:3])
        slope_N_D = torch.cat([slope for *_, slope in parts if slope is not None]) if ctx.needs_input_grad[0] else None
        trains = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        ctx.save_for_backward(slope_N_D, *((hidden_N_D, ids_N, normaliser_N, weight_V_D, bias_V) if trains else ()))
        ctx.made_of = bend, tile_values, product
        ctx.mark_non_differentiable(entropy_N)
        return logprobs_N, entropy_N

    @staticmethod
    def backward(ctx: Any, grad_N: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        slope_N_D, *rest = ctx.saved_tensors
        grad_hidden = None if slope_N_D is None else slope_N_D * grad_N[:, None].to(slope_N_D.dtype)
        grad_weight = grad_bias = None
        if rest:
            hidden_N_D, ids_N, normaliser_N, weight_V_D, bias_V = rest
            tiles = _Tiles(weight_V_D, bias_V, *ctx.made_of)
            grad_weight, grad_bias = tiles.weight_gradients(hidden_N_D, ids_N, normaliser_N, grad_N)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None


class _Tiles:
    """An output layer, read in tiles of its vocabulary."""

    def __init__(self, weight_V_D: Tensor, bias_V: Tensor | None, bend: Bend, values: int, product: Product) -> None:
        self._weight_V_D, self._bias_V, self._bend, self._product = weight_V_D, bias_V, bend, product
        self._values = values

    def scored(self, hidden_C_D: Tensor, ids_C: Tensor, *, gradient: bool) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Log-probabilities, entropies, log-normalisers, and the gradient of the first with respect to `hidden`."""
        softmax = _Softmax.empty(hidden_C_D)
        chosen_C, chosen_slope_C = torch.zeros_like(softmax.total_N), torch.ones_like(softmax.total_N)
        mean_C_D = torch.zeros_like(hidden_C_D, dtype=chosen_C.dtype)
        for weight_W_D, logits_C_W, slope_C_W, start in self._logits(hidden_C_D):
            place_C = ids_C - start
            inside_C = (place_C >= 0) & (place_C < len(weight_W_D))
            at_C_1 = place_C.clamp(0, len(weight_W_D) - 1)[:, None]
            chosen_C = torch.where(inside_C, logits_C_W.gather(1, at_C_1)[:, 0], chosen_C)
            if slope_C_W is not None:
                chosen_slope_C = torch.where(inside_C, slope_C_W.gather(1, at_C_1)[:, 0], chosen_slope_C)
            exponentials_C_W, shrunk_C = softmax.add(logits_C_W)
            if gradient:
                if slope_C_W is not None:
                    exponentials_C_W.mul_(slope_C_W)
                part_C_D = self._product(exponentials_C_W.to(weight_W_D.dtype), weight_W_D.t(), None)
                mean_C_D.mul_(shrunk_C[:, None]).add_(part_C_D)
        log_total_C = softmax.total_N.log()
        normaliser_C = log_total_C + softmax.top_N
        slope_C_D = None
        if gradient:
            slope_C_D = self._weight_V_D.index_select(0, ids_C).to(mean_C_D.dtype).mul_(chosen_slope_C[:, None])
            slope_C_D.sub_(mean_C_D.div_(softmax.total_N[:, None])).mul_(self._bend.factor)
            slope_C_D = slope_C_D.to(hidden_C_D.dtype)
        return chosen_C - normaliser_C, log_total_C - softmax.weighted_N / softmax.total_N, normaliser_C, slope_C_D

    def weight_gradients(
        self, hidden_N_D: Tensor, ids_N: Tensor, normaliser_N: Tensor, grad_N: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Of the weighted sum of log-probabilities: `Σ gₙ (1[v = idₙ] - pₙᵥ) hₙ`, tile by tile."""
        grad_V_D = torch.empty_like(self._weight_V_D)
        grad_V = None if self._bias_V is None else torch.empty_like(self._bias_V)
        factor_N = grad_N * (self._bend.factor)
        for _, logits_N_W, slope_N_W, start in self._logits(hidden_N_D):
            width = logits_N_W.shape[1]
            pull_N_W = logits_N_W.sub_(normaliser_N[:, None]).exp_().mul_(-factor_N[:, None])
            [inside_M] = ((ids_N >= start) & (ids_N < start + width)).nonzero(as_tuple=True)
            pull_N_W[inside_M, ids_N[inside_M] - start] += factor_N[inside_M]
            if slope_N_W is not None:
                pull_N_W.mul_(slope_N_W)
            narrow_N_W = pull_N_W.to(hidden_N_D.dtype)
            grad_V_D[start : start + width] = self._product(narrow_N_W.t(), hidden_N_D.t(), None)
            if grad_V is not None:
                grad_V[start : start + width] = pull_N_W.sum(0)
        return grad_V_D, grad_V

    def _logits(self, hidden_N_D: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor | None, int]]:
        """For each tile its weights, its bent logits in float32, the slope of the bend, and where it starts."""
        width = max(64, self._values // max(1, len(hidden_N_D)) // 64 * 64)  # else a product may copy its tile, to fill it up
        for start in range(0, len(self._weight_V_D), width):
            weight_W_D = self._weight_V_D[start : start + width]
            bias_W = None if self._bias_V is None else self._bias_V[start : start + width]
            logits_N_W = self._product(hidden_N_D, weight_W_D, bias_W).to(_wide(hidden_N_D))
            yield weight_W_D, *_bent(logits_N_W, self._bend), start


def _wide(values: Tensor) -> torch.dtype:
    """At least float32: a bf16 logsumexp is off by 0.01 nats."""
    return torch.promote_types(values.dtype, torch.float32)


def _bent(logits: Tensor, bend: Bend) -> tuple[Tensor, Tensor | None]:
    """Logits as the sampler saw them, and the slope of the softcap; overwrites its argument."""
    if bend.softcap is None:
        return (logits if bend.factor == 1 else logits.mul_(bend.factor)), None
    bent = logits.mul_(bend.scale / bend.softcap).tanh_()
    slope = 1 - bent.square()
    return bent.mul_(bend.softcap / bend.temperature), slope
