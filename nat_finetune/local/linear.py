"""Linear layers by the faster matrix product, and no more of it than training needs.

On x86 CPUs, torch's float32 product is MKL's, which leaves AVX-512 unused on processors that are not Intel's; oneDNN's, which
torch ships too, does not (measured on such a processor: 110 and 250 GFLOP/s on one thread). Which one is used depends on the
build and the kind of processor only, never on a measurement: the same run twice gives the same bits.

A frozen weight needs no input to be kept for its gradient, and a LoRA layer's three products are one step of autograd.
"""

from __future__ import annotations

import functools
import logging
import platform
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nat_finetune.algorithms.linear_logprobs import Product
from nat_finetune.local.onednn import onednn_linear

_log = logging.getLogger(__name__)

_TOLERANCE = 1e-4
"""Largest difference of two products over 64 standard normal terms; float32 gives 1e-5."""


@functools.cache
def fast_product() -> Product:
    """The product for float32 matrices on this CPU: oneDNN's on x86 if this torch has it and it is right, else torch's own."""
    if platform.machine().lower() not in ("x86_64", "amd64") or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return functional.linear
    try:
        difference = _disagreement(onednn_linear)
    except (RuntimeError, AttributeError) as error:  # an operator of torch's compiler: another build may lack it
        _log.warning("linear layers stay with torch's own product: oneDNN's can't be called (%s)", str(error).splitlines()[0])
        return functional.linear
    if not difference <= _TOLERANCE:
        _log.warning("linear layers stay with torch's own product: oneDNN's differs by %.2g", difference)
        return functional.linear
    return onednn_linear


def _disagreement(product: Product) -> float:
    """From torch's own, with weights as they are and with views in place of matrices, as the backward pass has them."""
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(size, generator=generator) for size in ((3, 5, 64), (48, 64), (48,)))
    grad = x.reshape(-1, 64)
    pairs = (
        (product(x, weight, bias), functional.linear(x, weight, bias)),
        (product(grad.t(), grad.t(), None), grad.t() @ grad),
    )
    return max(float((found - expected).abs().max()) for found, expected in pairs)


def use_fast_linear(model: Any) -> None:
    """Let a model's float32 linear layers on the CPU, also those with a LoRA adapter, compute by `fast_product`.

    Nothing else about the model changes: names, weights and what is saved stay. Doing so again changes nothing; do it again
    when an adapter has been attached.
    """
    if fast_product() is functional.linear:
        return
    module: Any
    for module in model.modules():
        if type(module).forward is torch.nn.Linear.forward and fits(module.weight):
            module.forward = functools.partial(_linear_forward, module)
        elif _is_plain_lora(module):
            module.forward = functools.partial(_lora_forward, module)


def fits(weight: Tensor) -> bool:
    """Whether `fast_product` is made for this weight."""
    return weight.dtype == torch.float32 and weight.device.type == "cpu"


def _linear_forward(layer: torch.nn.Linear, x: Tensor) -> Tensor:
    return linear(x, layer.weight, layer.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x weightᵀ + bias` with exact gradients, `[..., N]`; keeps `x` only if the weight trains."""
    if not fits(weight) or x.dtype != torch.float32 or x.numel() == 0:
        return functional.linear(x, weight, bias)
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)):
        out: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return out
    return fast_product()(x, weight, bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x if weight.requires_grad else None, weight)
        return fast_product()(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        product, grad_M_N = fast_product(), grad.reshape(-1, grad.shape[-1])
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            product(grad, weight.t(), None) if needs_x else None,
            product(grad_M_N.t(), x.reshape(-1, x.shape[-1]).t(), None) if needs_weight else None,
            grad_M_N.sum(0) if needs_bias else None,
        )


def _is_plain_lora(module: Any) -> bool:
    """Whether it is peft's ordinary LoRA layer with one adapter over a linear layer: no dropout, no variant of the method."""
    from peft.tuners.lora.layer import Linear

    if type(module) is not Linear or type(module.base_layer) is not torch.nn.Linear or not fits(module.base_layer.weight):
        return False
    [*names] = module.lora_A
    return (
        len(names) == 1
        and list(module.active_adapters) == names
        and not module.fan_in_fan_out
        and not module.lora_variant
        and not module.lora_bias[names[0]]
        and isinstance(module.lora_dropout[names[0]], torch.nn.Identity)
        and fits(module.lora_A[names[0]].weight)
    )


def _lora_forward(layer: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    if args or kwargs or layer.merged or x.dtype != torch.float32 or x.numel() == 0:
        own: Tensor = type(layer).forward(layer, x, *args, **kwargs)
        return own
    base = layer.base_layer
    if layer.disable_adapters:
        return linear(x, base.weight, base.bias)
    [name] = layer.active_adapters
    down, up, scaling = layer.lora_A[name].weight, layer.lora_B[name].weight, layer.scaling[name]
    if torch.is_grad_enabled() and not (base.weight.requires_grad or (base.bias is not None and base.bias.requires_grad)):
        out: Tensor = _LoraLinear.apply(x, base.weight, base.bias, down, up, scaling)  # type: ignore[no-untyped-call]
        return out
    out = linear(x, base.weight, base.bias)
    return (
        out + linear(linear(x, down), up) * scaling
        if torch.is_grad_enabled()
        else _add_product(out, linear(x, down), up, scaling)
    )


def _add_product(out: Tensor, left: Tensor, right: Tensor, scaling: float) -> Tensor:
    """`out += scaling left rightᵀ`, in place."""
    out.view(-1, out.shape[-1]).addmm_(left.reshape(-1, left.shape[-1]), right.t(), alpha=scaling)
    return out


class _LoraLinear(torch.autograd.Function):
    """`x Wᵀ + b + s (x Aᵀ) Bᵀ` with W and b frozen (arXiv:2106.09685, equation 3)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, down: Tensor, up: Tensor, scaling: float) -> Tensor:
        product = fast_product()
        low = product(x, down, None)
        ctx.save_for_backward(x, low, weight, down, up)
        ctx.scaling = scaling
        return _add_product(product(x, weight, bias), low, up, scaling)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, low, weight, down, up = ctx.saved_tensors
        product = fast_product()
        grad_M_N, x_M_K, low_M_R = (value.reshape(-1, value.shape[-1]) for value in (grad, x, low))
        grad_low_M_R = product(grad_M_N, up.t(), None).mul_(ctx.scaling)
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = _add_product(product(grad_M_N, weight.t(), None), grad_low_M_R, down.t(), 1.0).view_as(x)
        # The narrow side first: oneDNN is four times as fast with the 16 rows of a rank as with its 16 columns.
        grad_down = product(grad_low_M_R.t(), x_M_K.t(), None)
        grad_up = product(low_M_R.t(), grad_M_N.t(), None).t().mul(ctx.scaling)
        return grad_x, None, None, grad_down, grad_up, None
