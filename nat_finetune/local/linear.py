"""Linear layers inside transformers' modules by the fast product (see `products`), and no more of them than training needs.

A frozen weight needs no input to be kept for its gradient, and a LoRA layer's three products are one step of autograd.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nat_finetune.local.affine import Affine, input_gradient
from nat_finetune.local.products import fast_product, fits


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


def _linear_forward(layer: torch.nn.Linear, x: Tensor) -> Tensor:
    return linear(x, layer.weight, layer.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x weightᵀ + bias` with exact gradients, `[..., N]`; keeps `x` only if the weight trains."""
    if not fits(weight) or x.dtype != torch.float32 or x.numel() == 0:
        return functional.linear(x, weight, bias)
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)):
        return _applied(x, Affine(weight, bias))
    return fast_product()(x, weight, bias)


def _applied(x: Tensor, layer: Affine) -> Tensor:
    out: Tensor = _Linear.apply(x, *layer.tensors, layer.scaling)  # type: ignore[no-untyped-call]
    return out


class _Linear(torch.autograd.Function):
    """One step of autograd, also with an adapter."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *args: Any) -> Tensor:
        *tensors, scaling = args
        layer = Affine.of(tensors, scaling)
        out_N_M, low_N_R = layer(x.reshape(-1, x.shape[-1]))
        keeps = layer.down is not None or layer.weight.requires_grad
        ctx.save_for_backward(x if keeps else None, low_N_R, *layer.tensors)
        ctx.scaling, ctx.shape = layer.scaling, x.shape
        return out_N_M.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, low_N_R, *tensors = ctx.saved_tensors
        needs_x, *needs, _ = ctx.needs_input_grad
        x_N_K = None if x is None else x.reshape(-1, x.shape[-1])
        found = Affine.of(tensors, ctx.scaling).backward(x_N_K, low_N_R, grad.reshape(-1, grad.shape[-1]), needs)
        return input_gradient([found]).view(ctx.shape) if needs_x else None, *found.of_tensors, None


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
    adapted = Affine(base.weight, base.bias, layer.lora_A[name].weight, layer.lora_B[name].weight, layer.scaling[name])
    return _applied(x, adapted)
