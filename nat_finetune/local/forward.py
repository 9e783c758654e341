"""One way to call any decoder-only transformers model: ids and slots in, hidden states and logits out.

`forward_of` tries the fast way (keys and values in slots) on a few tokens and keeps it only where it gives what the model
itself gives; other architectures are served by running whole sequences again for every token: slow, and right.
"""

from __future__ import annotations

import inspect
import logging
from typing import Any, Protocol

import torch

from nat_finetune.errors import BackendError, NatFinetuneError, Stage, boundary
from nat_finetune.local.attention import ATTENTION, register_attention
from nat_finetune.local.blocks import BlockForward
from nat_finetune.local.device import place
from nat_finetune.local.kv_cache import Extend, Prefill, SlotCache

_log = logging.getLogger(__name__)


class Forward(Protocol):
    """What the engine needs of a model."""

    device: torch.device
    pass_tokens: int
    """Most tokens, padding included, of one forward."""
    shares: bool
    """Whether it can attend over a `Trunk`."""

    def refresh(self, *, changed: bool = False) -> None:
        """Look whether the weights have changed (`changed`: they have); called before any pass but a decode step."""

    def hidden(self, ids_B_T: torch.Tensor, positions_B_T: torch.Tensor, slots: Prefill | Extend) -> torch.Tensor:
        """A vector for each token, [B, T, …], from which `logits` are made."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits of some of those vectors, [..., V]."""


class CausalForward:
    """A causal language model taken apart into its decoder and its output layer, with keys and values in slots.

    Logits are computed for the positions that are asked for, never for a whole prompt.
    """

    def __init__(self, model: Any) -> None:
        register_attention()
        model.set_attn_implementation(ATTENTION)
        self._decoder = model.get_decoder()
        self._head = model.get_output_embeddings()
        accepted = inspect.signature(self._decoder.forward).parameters
        self._cache_name = "cache" if "cache" in accepted else "past_key_values"  # renamed during transformers 5
        self.device, self.pass_tokens = place(model)
        self.shares = model.config.to_dict().get("sliding_window") is None
        self._mask_prepared = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=self.device)

    def refresh(self, *, changed: bool = False) -> None:
        """Weights are read as they are."""

    def hidden(self, ids_B_T: torch.Tensor, positions_B_T: torch.Tensor, slots: Prefill | Extend) -> torch.Tensor:
        """Hidden states after the last layer, [B, T, hidden size]."""
        out = self._decoder(
            input_ids=ids_B_T,
            position_ids=positions_B_T,
            attention_mask=self._mask_prepared,  # four dimensions: transformers makes none itself; `slots` knows the real one
            use_cache=True,
            slots=slots,
            **{self._cache_name: slots},
        )
        hidden: torch.Tensor = out.last_hidden_state
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits of some hidden states, [..., V]."""
        result: torch.Tensor = self._head(hidden)
        return result


class RecomputeForward:
    """Any model that reads left to right: the slots hold token ids, and every forward runs whole sequences again."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.device, self.pass_tokens = place(model)
        self.shares = False

    def refresh(self, *, changed: bool = False) -> None:
        """Weights are read as they are."""

    def hidden(self, ids_B_T: torch.Tensor, positions_B_T: torch.Tensor, slots: Prefill | Extend) -> torch.Tensor:
        """Logits, [B, T, V]."""
        ids = ids_B_T[:, None, :, None]
        seen, _ = slots.update(ids, ids, 0)
        logits = self._model(input_ids=seen[:, 0, :, 0], use_cache=False).logits
        at_positions: torch.Tensor = logits.gather(1, positions_B_T[:, :, None].expand(-1, -1, logits.shape[-1]))
        return at_positions

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """As they came."""
        return hidden


def forward_of(model: Any) -> Forward:
    """The fastest forward that agrees with the model.

    Raises:
        BackendError: none does: the model does not read left to right.
    """
    reasons: list[str] = []
    # Transformers' blocks first: where the slots' attention is right for them, training reads trees of inputs with it.
    slots = _tried(CausalForward, model, reasons)
    found = slots and (_tried(BlockForward, model, []) or slots)
    if found is None and (found := _tried(RecomputeForward, model, reasons)) is not None:
        _log.warning("%s can't keep keys and values in slots, so generation is slow (%s)", _name(model), reasons[0])
    if found is not None:
        return found
    raise BackendError(
        f"{_name(model)} can't be sampled by the local engine: expected a decoder-only model that reads left to right, such as "
        f"Llama, Qwen, Mistral, Gemma or Phi ({'; '.join(reasons)})"
    )


def _tried(
    kind: type[BlockForward] | type[CausalForward] | type[RecomputeForward], model: Any, reasons: list[str]
) -> Forward | None:
    """A forward if it can be made and agrees; else None, with the reason added, and the model's attention as it was."""
    attention, name = model.config._attn_implementation, kind.__name__
    try:
        with boundary(Stage.MODEL), torch.inference_mode():
            forward: Forward = kind(model)
            difference = disagreement(model, forward)
    except NatFinetuneError as error:
        reasons.append(f"{name}: {error}")
    else:
        if difference <= _tolerance(model.dtype):
            return forward
        reasons.append(f"{name}: logprobs differ by {difference:.2g} nats from the model's own")
    model.set_attn_implementation(attention)
    return None


def disagreement(model: Any, forward: Forward) -> float:
    """Largest difference (nats) between a forward over slots and the model's own, on two short sequences with a pause."""
    vocabulary = model.get_input_embeddings().weight.shape[0]
    lengths, further = (3, 7), 2
    ids = (torch.arange(2 * (max(lengths) + further), device=forward.device) * 7 + 3).view(2, -1) % vocabulary
    cache = SlotCache()
    cache.reserve(2, ids.shape[1], used=0)
    positions = torch.arange(max(lengths), device=forward.device).expand(2, -1)
    forward.hidden(ids[:, : max(lengths)], positions, Prefill(cache, 0, positions))
    begin = torch.tensor(lengths, device=forward.device)[:, None]
    positions = begin + torch.arange(further, device=forward.device)
    hidden = forward.hidden(ids.gather(1, positions), positions, Extend(cache, positions, ids.shape[1]))
    worst = 0.0
    for row, length in enumerate(lengths):
        expected = model(input_ids=ids[row : row + 1, : length + further], use_cache=False).logits[0, length:]
        difference = forward.logits(hidden[row]).float().log_softmax(-1) - expected.float().log_softmax(-1)
        worst = max(worst, float(difference.abs().max()))
    return worst


def _tolerance(dtype: torch.dtype) -> float:
    return 1e-3 if dtype is torch.float32 else 0.5


def _name(model: Any) -> str:
    return type(model).__name__
