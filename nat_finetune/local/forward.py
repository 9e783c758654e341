"""One way to call any decoder-only transformers model: ids and slots in, hidden states and logits out."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from nat_finetune.errors import BackendError
from nat_finetune.local.kv_cache import Extend, Prefill


class CausalForward:
    """A causal language model taken apart into its decoder and its output layer.

    Logits are computed for the positions that are asked for, never for a whole prompt.
    """

    def __init__(self, model: Any) -> None:
        self._decoder = model.get_decoder()
        self._head = model.get_output_embeddings()
        if self._head is None:
            raise BackendError(f"{type(model).__name__} has no output layer: expected a causal language model")
        accepted = inspect.signature(self._decoder.forward).parameters
        self._cache_name = "cache" if "cache" in accepted else "past_key_values"  # renamed during transformers 5
        self.device: torch.device = self._head.weight.device
        self._mask_prepared = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=self.device)

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
