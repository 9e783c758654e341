"""The usual decoder blocks as updates run them on a CPU: two steps of autograd a layer around its attention.

What is computed is what transformers' modules compute. What is saved is memory traffic: a tensor that is nobody else's is
overwritten, what is cheap is made again on the way back instead of being kept, additions ride on matrix products, and the
last layer's MLP sees only the tokens whose hidden states are wanted. Weights and adapters are read at every call.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from nat_finetune.data.layout import Part
from nat_finetune.errors import BackendError, NatFinetuneError, Stage, boundary
from nat_finetune.local.affine import Affine
from nat_finetune.local.attention import Unslotted
from nat_finetune.local.branches import Branches
from nat_finetune.local.fast_linear import Projection
from nat_finetune.local.layers import Layer, layers_of, turns
from nat_finetune.local.products import fits
from nat_finetune.local.trained_steps import Inputs, Norm, Outputs, Turn, tensors_of

_log = logging.getLogger(__name__)
_TOLERANCE = 1e-3
"""Largest difference of hidden states, which are normalised, from those of the model's own modules."""


class TrainedBlocks:
    """A decoder of usual blocks, with gradients; one packed sequence at a time."""

    def __init__(self, decoder: Any) -> None:
        """Raises BackendError where the decoder, or what it computes with, is something else."""
        self._decoder = decoder
        self._layers = layers_of(decoder)
        act = decoder.config.hidden_act
        if act not in ("silu", "swish"):
            raise BackendError(f"its activation is {act}")
        if not all(fits(weight) for weight in decoder.parameters()):
            raise BackendError("its weights are not all float32 on a CPU")
        self.lines()

    def lines(self) -> list[tuple[Affine, ...]]:
        """The linear layers of all layers as they are now. Raises BackendError where one is more than plain LoRA."""
        return [tuple(_affine(module) for module in (*layer.of_input, *layer.of_output)) for layer in self._layers]

    def hidden(self, ids_1_T: Tensor, positions_1_T: Tensor, attention: Unslotted, wanted_P: Tensor | None = None) -> Tensor:
        """Hidden states after the last layer, `[1, T, D]`, or `[1, P, D]` of the tokens that are wanted.

        Raises:
            BackendError: see `lines`.
        """
        x = self._decoder.get_input_embeddings()(ids_1_T)
        cos, sin = turns(self._decoder.rotary_emb, x, positions_1_T)
        turn, x_N_D = Turn(cos, sin, -sin), x[0]
        for layer, lines in zip(self._layers, self.lines(), strict=True):
            wanted = wanted_P if layer.index == len(self._layers) - 1 else None
            run = functools.partial(_layer, layer, lines, attention, turn, wanted)
            if self._decoder.gradient_checkpointing and torch.is_grad_enabled():
                x_N_D = checkpoint(run, x_N_D, use_reentrant=False, preserve_rng_state=False)
            else:
                x_N_D = run(x_N_D)
        norm = self._decoder.norm
        normed: Tensor = Norm.apply(x_N_D, norm.weight, norm.variance_epsilon)  # type: ignore[no-untyped-call]
        return normed[None]


def _affine(module: Any) -> Affine:
    projection = Projection.of(module)
    weight, bias = projection.base.weight, projection.base.bias
    match projection.low_rank():
        case []:
            return Affine(weight, bias)
        case [(down, up, scaling)] if fits(down) and not _drops(projection.adapter):
            return Affine(weight, bias, down, up, scaling)
    raise BackendError("an adapter is more than plain LoRA, or there are several")


def _drops(adapter: Any) -> bool:
    return any(not isinstance(dropout, torch.nn.Identity) for dropout in adapter.lora_dropout.values())


def _layer(
    layer: Layer, lines: Sequence[Affine], attention: Unslotted, turn: Turn, wanted_P: Tensor | None, x_N_D: Tensor
) -> Tensor:
    norms = [None if norm is None else norm.weight for norm in (layer.before, layer.query_norm, layer.key_norm)]
    query, key, value, beside_N_D = Inputs.apply(  # type: ignore[no-untyped-call]
        x_N_D, *norms, layer, turn, [line.scaling for line in lines[:3]], *tensors_of(lines[:3])
    )
    attended = attention.attend(query, key, value, scale=layer.scale, window=layer.window)
    out: Tensor = Outputs.apply(  # type: ignore[no-untyped-call]
        attended.reshape(len(x_N_D), -1),
        beside_N_D,
        layer.between.weight,
        layer.between.variance_epsilon,
        wanted_P,
        [line.scaling for line in lines[3:]],
        *tensors_of(lines[3:]),
    )
    return out


def trained_blocks(decoder: Any) -> TrainedBlocks | None:
    """A decoder's blocks as updates run them, if they give what its modules give; else None, and the log says why."""
    try:
        with boundary(Stage.MODEL), torch.no_grad():
            blocks = TrainedBlocks(decoder)
            difference = _disagreement(decoder, blocks)
    except NatFinetuneError as error:
        _log.info("updates run %s's own modules: %s", type(decoder).__name__, error)
        return None
    if difference <= _TOLERANCE:
        return blocks
    _log.warning("updates run %s's own modules: hidden states would differ by %.2g", type(decoder).__name__, difference)
    return None


def _disagreement(decoder: Any, blocks: TrainedBlocks) -> float:
    """Largest difference of hidden states from those of the modules, on a short sequence, all of it and a part."""
    length = 9
    ids = (torch.arange(length) * 7 + 3)[None] % decoder.get_input_embeddings().weight.shape[0]
    positions, wanted = torch.arange(length)[None], torch.tensor([2, length - 1])
    attention = Branches([Part(0, length, 0, length, causal=True)], positions)
    expected = decoder(input_ids=ids, use_cache=False).last_hidden_state
    found = blocks.hidden(ids, positions, attention), blocks.hidden(ids, positions, attention, wanted)
    return max(float((expected - found[0]).abs().max()), float((expected[:, wanted] - found[1]).abs().max()))
