"""Linear layers as sampling wants them: those that read the same input in one call, on a CPU with weights laid out in advance.

A CPU in float32 keeps a copy of the weights in oneDNN's blocked layout, low-rank adapters folded in: that runs at the
machine's arithmetic limit from a few rows on (measured: 2.2 to 2.5 times torch's own). The copy is made again when a weight
has changed. Elsewhere the model's own weights and adapters are read as they are, and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from nat_finetune.errors import BackendError
from nat_finetune.local.linear import linear
from nat_finetune.local.onednn import onednn_linear
from nat_finetune.local.products import fast_product

_ROWS = 32
"""Rows that the blocked layout is chosen for; measured: it serves 1 to 512 as well as a layout of their own."""

_SHARE = 0.5
"""Of the free memory that copies of weights may take."""


@dataclass(frozen=True, slots=True)
class Projection:
    """A linear layer, with the low-rank adapter that peft may have put around it."""

    base: nn.Linear
    adapter: Any = None
    """peft's layer around `base`."""

    @classmethod
    def of(cls, module: nn.Module) -> Projection:
        """Read a module.

        Raises:
            BackendError: it is neither a plain linear layer nor one with plain LoRA.
        """
        if type(module) is nn.Linear:
            return cls(module)
        from peft.tuners.lora.layer import Linear as LoraLinear

        layer: Any = module
        if (
            not isinstance(module, LoraLinear)
            or type(layer.base_layer) is not nn.Linear
            or layer.lora_variant
            or layer.fan_in_fan_out
            or any(layer.lora_bias.values())
        ):
            raise BackendError(f"{type(module).__name__} is no plain linear layer")
        return cls(layer.base_layer, layer)

    def low_rank(self) -> list[tuple[Tensor, Tensor, float]]:
        """(A, B, scale) of each adapter that is switched on: the output is x Wᵀ + scale · x Aᵀ Bᵀ."""
        if self.adapter is None or self.adapter.disable_adapters or self.adapter.merged:
            return []
        names = [name for name in self.adapter.active_adapters if name in self.adapter.lora_A]
        return [
            (self.adapter.lora_A[name].weight, self.adapter.lora_B[name].weight, float(self.adapter.scaling[name]))
            for name in names
        ]

    @property
    def trained(self) -> bool:
        """Whether some of its weights are."""
        weights = [self.base.weight, *(part for a, b, _ in self.low_rank() for part in (a, b))]
        return any(weight.requires_grad for weight in weights)

    def state(self) -> tuple[object, ...]:
        """Changes with every change that torch counts, and with the weights' place; fused optimisers are not counted."""
        found: list[object] = [*_mark(self.base.weight), self.base.bias is None]
        if self.base.bias is not None:
            found += _mark(self.base.bias)
        for a, b, scale in self.low_rank():
            found += [*_mark(a), *_mark(b), scale]
        return tuple(found)

    def folded(self) -> Tensor:
        """The weight with its adapters in it, [O, I]."""
        weight = self.base.weight.detach()
        for a, b, scale in self.low_rank():
            weight = torch.addmm(weight, b.detach(), a.detach(), alpha=scale)
        return weight

    def __call__(self, x_N_I: Tensor) -> Tensor:
        """[N, O]."""
        out = linear(x_N_I, self.base.weight, self.base.bias)
        for a, b, scale in self.low_rank():
            out = (out + linear(linear(x_N_I.to(a.dtype), a), b) * scale).to(out.dtype)
        return out


class FastLinear:
    """Several linear layers of one input as one: outputs stand side by side."""

    def __init__(self, modules: Sequence[nn.Module], *, packed: bool) -> None:
        """`packed`: keep the weights in oneDNN's layout (see `can_pack`).

        Raises:
            BackendError: a module is neither a plain linear layer nor one with plain LoRA.
        """
        self._parts = [Projection.of(module) for module in modules]
        self._packed = packed
        self._state: tuple[object, ...] = ()
        self._weight: Tensor | None = None
        self._bias: Tensor | None = None

    @torch.no_grad()
    def refresh(self, *, changed: bool) -> None:
        """Lay the weights out again where they have changed; `changed`: trained ones have, also if torch did not count it."""
        if not self._packed:
            return
        state = tuple(part.state() for part in self._parts)
        if state == self._state and not (changed and any(part.trained for part in self._parts)):
            return
        weights = [part.folded() for part in self._parts]
        weight = weights[0] if len(weights) == 1 else torch.cat(weights)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
        biases = [part.base.bias for part in self._parts]
        if any(bias is not None for bias in biases):
            zeros = [part.base.weight.new_zeros(part.base.out_features) for part in self._parts]
            self._bias = torch.cat([zero if b is None else b.detach() for b, zero in zip(biases, zeros, strict=True)])
        self._state = state

    def __call__(self, x_N_I: Tensor) -> Tensor:
        """[N, sum of the outputs]."""
        if self._weight is not None:  # packed
            return onednn_linear(x_N_I, self._weight, self._bias, packed=True)
        if len(self._parts) == 1:
            return self._parts[0](x_N_I)
        return torch.cat([part(x_N_I) for part in self._parts], -1)


def can_pack(weight: Tensor, count: int, free_bytes: int | None) -> bool:
    """Whether `count` weights of this one's kind may be kept in oneDNN's layout: a rule, no timing, so that runs repeat."""
    fits = free_bytes is None or count * weight.element_size() <= _SHARE * free_bytes
    onednn = fast_product() is not functional.linear
    return weight.device.type == "cpu" and weight.dtype is torch.float32 and onednn and fits


def _mark(weight: Tensor) -> tuple[int, int]:
    return weight.data_ptr(), weight._version
