"""The usual decoder block (Llama, Mistral, Qwen 2 and 3), run without transformers' modules around it.

What is computed is the same; what is saved is time: one call for queries, keys and values, one for gate and up, weights laid
out for the CPU, and none of the bookkeeping that costs a small model more than its arithmetic. `forward_of` holds it against
the model before it is used, and takes the slower way where it doesn't fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, cat
from torch.nn import functional

from nat_finetune.local.attention import attend
from nat_finetune.local.device import place
from nat_finetune.local.fast_linear import FastLinear, can_pack
from nat_finetune.local.kv_cache import Extend, Prefill
from nat_finetune.local.layers import Layer, layers_of, rotated, turns
from nat_finetune.local.ram import free_ram


class _Norm:
    """Root mean square normalisation (arXiv:1910.07467)."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._shape: Sequence[int] = tuple(module.weight.shape)

    def __call__(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self._shape, self._module.weight, self._module.variance_epsilon)


class _Block:
    """One layer."""

    def __init__(self, layer: Layer, *, packed: bool) -> None:
        self.index, self.size, self.heads, self.shared = layer.index, layer.size, layer.heads, layer.shared
        self.scale, self.window = layer.scale, layer.window
        self.before, self.between = _Norm(layer.before), _Norm(layer.between)
        out, gate, up, down = layer.of_output
        self.qkv = FastLinear(layer.of_input, packed=packed)
        self.out = FastLinear([out], packed=packed)
        self.gate_up = FastLinear([gate, up], packed=packed)
        self.down = FastLinear([down], packed=packed)
        self.act = layer.mlp.act_fn
        self.query_norm = None if layer.query_norm is None else _Norm(layer.query_norm)
        self.key_norm = None if layer.key_norm is None else _Norm(layer.key_norm)

    def linears(self) -> tuple[FastLinear, ...]:
        return self.qkv, self.out, self.gate_up, self.down

    def __call__(self, x_N_H: Tensor, cos: Tensor, sin: Tensor, rows: int, slots: Prefill | Extend) -> Tensor:
        """`cos`, `sin`: [N, 1, head size]; `rows`: B of N = B · T."""
        states = self.qkv(self.before(x_N_H)).view(x_N_H.shape[0], -1, self.size)
        turned = self.heads + self.shared
        query_key = rotated(self._normalised(states[:, :turned]), cos, sin)
        out = attend(
            slots,
            self.index,
            _by_row(query_key[:, : self.heads], rows),
            _by_row(query_key[:, self.heads :], rows),
            _by_row(states[:, turned:], rows),
            scale=self.scale,
            window=self.window,
        )
        x_N_H = self.out(out.reshape(x_N_H.shape[0], -1)).add_(x_N_H)
        gate, up = self.gate_up(self.between(x_N_H)).chunk(2, -1)
        hidden: Tensor = self.act(gate)
        return self.down(hidden.mul_(up)).add_(x_N_H)

    def _normalised(self, states: Tensor) -> Tensor:
        if self.query_norm is None or self.key_norm is None:
            return states
        return cat([self.query_norm(states[:, : self.heads]), self.key_norm(states[:, self.heads :])], 1)


class BlockForward:
    """A forward over slots for models of usual blocks (see `forward.Forward`)."""

    def __init__(self, model: Any) -> None:
        """Raises BackendError where the model is made of something else."""
        decoder = model.get_decoder()
        layers = layers_of(decoder)
        self.device, self.pass_tokens = place(model)
        self._embedding = model.get_input_embeddings()
        count = sum(parameter.numel() for parameter in model.parameters())
        packed = can_pack(self._embedding.weight, count, free_ram())
        self._blocks = [_Block(layer, packed=packed) for layer in layers]
        self._norm, self._rotary = _Norm(decoder.norm), decoder.rotary_emb
        self._head = FastLinear([model.get_output_embeddings()], packed=packed)
        self.shares = all(block.window is None for block in self._blocks)
        self.refresh(changed=True)

    def refresh(self, *, changed: bool = False) -> None:
        """See whether the weights have changed; `changed`: they have."""
        for linear in (self._head, *(linear for block in self._blocks for linear in block.linears())):
            linear.refresh(changed=changed)

    def hidden(self, ids_B_T: Tensor, positions_B_T: Tensor, slots: Prefill | Extend) -> Tensor:
        """Hidden states after the last layer, [B, T, hidden size]."""
        rows = ids_B_T.shape[0]
        states: Tensor = self._embedding(ids_B_T)  # called: an adapter may be around it
        cos, sin = turns(self._rotary, states, positions_B_T)
        x_N_H = states.reshape(-1, states.shape[-1])
        for block in self._blocks:
            x_N_H = block(x_N_H, cos, sin, rows, slots)
        return _by_row(self._norm(x_N_H), rows)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of some hidden states, [..., V]."""
        return self._head(hidden)


def _by_row(states: Tensor, rows: int) -> Tensor:
    """[B · T, …] → [B, T, …]."""
    return states.view(rows, -1, *states.shape[1:])
