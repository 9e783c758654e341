"""One linear layer's arithmetic, forwards and backwards, with the low-rank adapter that may stand beside its weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nat_finetune.local.products import added_product, fast_product


@dataclass(frozen=True, slots=True)
class Affine:
    """`x Wᵀ + b + s (x Aᵀ) Bᵀ` (arXiv:2106.09685, equation 3)."""

    weight: Tensor
    bias: Tensor | None
    down: Tensor | None = None
    """A, `[R, K]`; None without an adapter."""
    up: Tensor | None = None
    """B, `[M, R]`."""
    scaling: float = 1.0

    @classmethod
    def of(cls, tensors: Sequence[Any], scaling: float) -> Affine:
        """Back from `tensors`."""
        weight, bias, down, up = tensors
        return cls(weight, bias, down, up, scaling)

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """Weight, bias, A, B."""
        return self.weight, self.bias, self.down, self.up

    def __call__(self, x_N_K: Tensor, beside: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The output, `[N, M]`, on top of `beside`, and `s x Aᵀ`, which the gradients need."""
        if beside is None:
            out = fast_product()(x_N_K, self.weight, self.bias)
        else:
            out = added_product(x_N_K, self.weight, self.bias, beside)
        if self.down is None or self.up is None:
            return out, None
        low_N_R = fast_product()(x_N_K, self.down, None).mul_(self.scaling)
        return added_product(low_N_R, self.up, None, out), low_N_R

    def backward(self, x_N_K: Tensor | None, low_N_R: Tensor | None, grad_N_M: Tensor, needs: Sequence[bool]) -> Gradients:
        """Gradients of `tensors`, as far as they are needed; `x` may be None where only the bias trains."""
        product = fast_product()

        def outer(left_N_I: Tensor) -> Tensor:
            assert x_N_K is not None
            return product(left_N_I.t(), x_N_K.t(), None)

        weight = outer(grad_N_M) if needs[0] else None
        bias = grad_N_M.sum(0) if needs[1] else None
        if self.up is None or low_N_R is None:
            return Gradients(self, grad_N_M, None, (weight, bias, None, None))
        grad_low_N_R = product(grad_N_M, self.up.t(), None).mul_(self.scaling)
        # The narrow side first: oneDNN is four times as fast with the 16 rows of a rank as with its 16 columns.
        down = outer(grad_low_N_R) if needs[2] else None
        up = product(low_N_R.t(), grad_N_M.t(), None).t() if needs[3] else None
        return Gradients(self, grad_N_M, grad_low_N_R, (weight, bias, down, up))


class Gradients(NamedTuple):
    """What comes back to a linear layer, and what it makes of it."""

    layer: Affine
    of_output: Tensor
    """`[N, M]`."""
    of_low: Tensor | None
    """With respect to `x Aᵀ`, `[N, R]`."""
    of_tensors: tuple[Tensor | None, ...]
    """As in `Affine.tensors`."""


def input_gradient(found: Sequence[Gradients]) -> Tensor:
    """Of what several layers read, `[N, K]`; a tensor of its own."""
    first, *others = found
    total = fast_product()(first.of_output, first.layer.weight.t(), None)
    for other in others:
        total = added_product(other.of_output, other.layer.weight.t(), None, total)
    lows, downs = [], []
    for layer, _, of_low, _ in found:
        if of_low is not None and layer.down is not None:
            lows.append(of_low)
            downs.append(layer.down)
    if not lows:
        return total
    low, down = (lows[0], downs[0]) if len(lows) == 1 else (torch.cat(lows, 1), torch.cat(downs))
    return added_product(low, down.t(), None, total)
