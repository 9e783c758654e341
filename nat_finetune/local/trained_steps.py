"""Both halves of a usual decoder layer as steps of autograd, with the backward pass written out (see `trained_blocks`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from nat_finetune.local.affine import Affine, input_gradient
from nat_finetune.local.layers import Layer, rotated


class Turn(NamedTuple):
    """What rotary positions of a micro-batch are made of, `[N, 1, head size]`."""

    cos: Tensor
    sin: Tensor
    back: Tensor
    """Minus `sin`."""


def tensors_of(lines: Sequence[Affine]) -> list[Tensor | None]:
    """Flat, as a step of autograd takes them."""
    return [tensor for line in lines for tensor in line.tensors]


def _lines(tensors: Sequence[Any], scalings: Sequence[float]) -> list[Affine]:
    """Back from `tensors_of`."""
    return [Affine.of(tensors[4 * i : 4 * i + 4], scaling) for i, scaling in enumerate(scalings)]


def _unit(x: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Vectors divided by their root mean square (arXiv:1910.07467), and one over it, `[..., 1]`."""
    inverse = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().mul_(1 / x.shape[-1]).add_(epsilon).rsqrt_()
    return x * inverse, inverse


def _unit_backward(grad: Tensor, unit: Tensor) -> Tensor:
    """Of what `_unit` read, but for the factor `inverse`; overwrites `grad`."""
    along = torch.linalg.vecdot(grad, unit)[..., None].mul_(-1 / unit.shape[-1])
    return grad.addcmul_(unit, along)


class Norm(torch.autograd.Function):
    """The normalisation behind the last layer."""

    @staticmethod
    def forward(ctx: Any, x_N_D: Tensor, weight_D: Tensor, epsilon: float) -> Tensor:
        """The same shape."""
        unit_N_D, inverse_N_1 = _unit(x_N_D, epsilon)
        ctx.save_for_backward(unit_N_D, inverse_N_1, weight_D)
        return unit_N_D * weight_D

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_N_D: Tensor) -> tuple[Tensor | None, ...]:
        """Of all that `forward` takes."""
        unit_N_D, inverse_N_1, weight_D = ctx.saved_tensors
        of_weight = (grad_N_D * unit_N_D).sum(0) if ctx.needs_input_grad[1] else None
        return _unit_backward(grad_N_D * weight_D, unit_N_D).mul_(inverse_N_1), of_weight, None


class Inputs(torch.autograd.Function):
    """What attention reads: normalised, multiplied, (normalised per head,) rotated. Passes on what it read, beside it."""

    @staticmethod
    def forward(
        ctx: Any,
        x_N_D: Tensor,
        norm_D: Tensor,
        query_norm: Tensor | None,
        key_norm: Tensor | None,
        layer: Layer,
        turn: Turn,
        scalings: Sequence[float],
        *tensors: Tensor | None,
    ) -> tuple[Tensor, ...]:
        """Queries, keys and values `[1, heads, T, head size]`, and `x` as it is."""
        unit_N_D, inverse_N_1 = _unit(x_N_D, layer.before.variance_epsilon)
        normed_N_D = unit_N_D * norm_D
        lines = _lines(tensors, scalings)
        (query, low_q), (key, low_k), (value, low_v) = (line(normed_N_D) for line in lines)
        query, query_unit, query_inverse = _head_norm(_heads(query, layer), layer.query_norm, query_norm)
        key, key_unit, key_inverse = _head_norm(_heads(key, layer), layer.key_norm, key_norm)
        ctx.save_for_backward(
            *(unit_N_D, inverse_N_1, norm_D),
            *(query_norm, query_unit, query_inverse, key_norm, key_unit, key_inverse),
            *(low_q, low_k, low_v),
            *tensors,
        )
        ctx.layer, ctx.turn, ctx.scalings = layer, turn, scalings
        query, key = (rotated(states, turn.cos, turn.sin) for states in (query, key))
        return *(states.transpose(0, 1)[None] for states in (query, key, _heads(value, layer))), x_N_D

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Of all that `forward` takes."""
        unit_N_D, inverse_N_1, norm_D, *rest = ctx.saved_tensors
        (query_norms, key_norms), lows, tensors = (rest[:3], rest[3:6]), rest[6:9], rest[9:]
        needs = ctx.needs_input_grad
        of_query, of_key, of_value = (grad[0].transpose(0, 1) for grad in grads[:3])
        of_query, of_key = (rotated(grad, ctx.turn.cos, ctx.turn.back) for grad in (of_query, of_key))
        of_query, of_query_norm = _head_norm_backward(of_query, *query_norms, needs=needs[2])
        of_key, of_key_norm = _head_norm_backward(of_key, *key_norms, needs=needs[3])
        normed_N_D = unit_N_D * norm_D
        found = [
            line.backward(normed_N_D, low, grad.reshape(len(unit_N_D), -1), needs[7 + 4 * i :])
            for i, (line, low, grad) in enumerate(
                zip(_lines(tensors, ctx.scalings), lows, (of_query, of_key, of_value), strict=True)
            )
        ]
        of_x, of_norm = None, None
        if needs[0] or needs[1]:
            of_x, of_norm = _norm_backward(input_gradient(found), unit_N_D, inverse_N_1, norm_D, grads[3], needs=needs[1])
        return (
            of_x,
            of_norm,
            of_query_norm,
            of_key_norm,
            None,
            None,
            None,
            *(grad for part in found for grad in part.of_tensors),
        )


class Outputs(torch.autograd.Function):
    """What follows attention: its output layer and the MLP, each added to what it stands beside."""

    @staticmethod
    def forward(
        ctx: Any,
        attended_N_A: Tensor,
        beside_N_D: Tensor,
        norm_D: Tensor,
        epsilon: float,
        wanted_P: Tensor | None,
        scalings: Sequence[float],
        *tensors: Tensor | None,
    ) -> Tensor:
        """`[N, D]`, or `[P, D]` of the tokens that are wanted."""
        ctx.count = len(attended_N_A)
        if wanted_P is not None:
            attended_N_A, beside_N_D = (states.index_select(0, wanted_P) for states in (attended_N_A, beside_N_D))
        out, gate, up, down = _lines(tensors, scalings)
        x_N_D, low_o = out(attended_N_A, beside_N_D)
        unit_N_D, inverse_N_1 = _unit(x_N_D, epsilon)
        normed_N_D = unit_N_D * norm_D
        gate_N_I, low_g = gate(normed_N_D)
        up_N_I, low_u = up(normed_N_D)
        result, low_d = down(functional.silu(gate_N_I).mul_(up_N_I), x_N_D)
        ctx.save_for_backward(
            *(attended_N_A, wanted_P, unit_N_D, inverse_N_1, norm_D, gate_N_I, up_N_I),
            *(low_o, low_g, low_u, low_d),
            *tensors,
        )
        ctx.scalings = scalings
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_N_D: Tensor) -> tuple[Tensor | None, ...]:
        """Of all that `forward` takes."""
        attended_N_A, wanted_P, unit_N_D, inverse_N_1, norm_D, gate_N_I, up_N_I, *rest = ctx.saved_tensors
        (low_o, low_g, low_u, low_d), tensors = rest[:4], rest[4:]
        out, gate, up, down = _lines(tensors, ctx.scalings)
        needs = ctx.needs_input_grad
        act_N_I = functional.silu(gate_N_I)
        of_down = down.backward(act_N_I * up_N_I, low_d, grad_N_D, needs[18:22])
        of_hidden_N_I = input_gradient([of_down])
        of_up_N_I = act_N_I.mul_(of_hidden_N_I)
        of_gate_N_I = of_hidden_N_I.mul_(up_N_I)
        torch.ops.aten.silu_backward.grad_input(of_gate_N_I, gate_N_I, grad_input=of_gate_N_I)
        normed_N_D = unit_N_D * norm_D
        of_gate = gate.backward(normed_N_D, low_g, of_gate_N_I, needs[10:14])
        of_up = up.backward(normed_N_D, low_u, of_up_N_I, needs[14:18])
        of_normed_N_D = input_gradient([of_gate, of_up])
        of_x_N_D, of_norm = _norm_backward(of_normed_N_D, unit_N_D, inverse_N_1, norm_D, grad_N_D, needs=needs[2])
        of_out = out.backward(attended_N_A, low_o, of_x_N_D, needs[6:10])
        of_attended = input_gradient([of_out]) if needs[0] else None
        of_beside: Tensor | None = of_x_N_D if needs[1] else None
        if wanted_P is not None:
            of_attended, of_beside = (_spread(grad, wanted_P, ctx.count) for grad in (of_attended, of_beside))
        found = (of_out, of_gate, of_up, of_down)
        return of_attended, of_beside, of_norm, None, None, None, *(grad for part in found for grad in part.of_tensors)


def _heads(states_N_A: Tensor, layer: Layer) -> Tensor:
    return states_N_A.view(len(states_N_A), -1, layer.size)


def _head_norm(states: Tensor, module: Any, weight: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Normalised, where a layer does so, with what the backward pass needs."""
    if weight is None:
        return states, None, None
    unit, inverse = _unit(states, module.variance_epsilon)
    return unit * weight, unit, inverse


def _head_norm_backward(
    grad: Tensor, weight: Tensor | None, unit: Tensor | None, inverse: Tensor | None, *, needs: bool
) -> tuple[Tensor, Tensor | None]:
    """Of the states, overwriting `grad`, and of the weight."""
    if weight is None or unit is None or inverse is None:
        return grad, None
    of_weight = (grad * unit).sum((0, 1)) if needs else None
    return _unit_backward(grad.mul_(weight), unit).mul_(inverse), of_weight


def _norm_backward(
    grad: Tensor, unit: Tensor, inverse: Tensor, weight: Tensor, beside: Tensor, *, needs: bool
) -> tuple[Tensor, Tensor | None]:
    """Of what a normalisation read, on top of `beside`, and of its weight; overwrites `grad` and `beside`."""
    of_weight = (grad * unit).sum(0) if needs else None
    return beside.addcmul_(_unit_backward(grad.mul_(weight), unit), inverse), of_weight


def _spread(grad_P: Tensor | None, wanted_P: Tensor, count: int) -> Tensor | None:
    """Back among the tokens that were not wanted."""
    if grad_P is None:
        return None
    return grad_P.new_zeros((count, grad_P.shape[1])).index_copy_(0, wanted_P, grad_P)
