"""How many tokens an update reads at once: what the config says, or what fits, found out without losing a step."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import torch

from nat_finetune.errors import BackendError
from nat_finetune.local.ram import free_ram

AUTO = "auto"
CPU_TOKENS, GPU_TOKENS = 2048, 8192
"""Where memory does not matter."""
_HIDDEN_COPIES = 36
"""Values that a layer keeps for each token, in sizes of its hidden state (measured, Llama's blocks: 35)."""
_SHARE = 0.5
"""Of the free memory that they may take; the rest is for gradients on the way and for what else runs."""
_SMALLEST = 64

Outcome = TypeVar("Outcome")
_log = logging.getLogger(__name__)


class TokenBudget:
    """Lives as long as the run: what was too much once is not tried again."""

    def __init__(self) -> None:
        self._limit: int | None = None
        self.retries = 0
        """Attempts that ran out of memory and were made again with less."""

    def tokens(self, setting: int | Literal["auto"], model: Any, *, checkpointing: bool) -> int:
        """Tokens of a micro-batch: the setting, or what probably fits and has not failed."""
        if isinstance(setting, int):
            return setting
        if self._limit is None:
            self._limit = fitting_tokens(model, checkpointing=checkpointing)
        return self._limit

    def attempt(
        self,
        work: Callable[[int], Outcome],
        undo: Callable[[], None],
        setting: int | Literal["auto"],
        model: Any,
        *,
        checkpointing: bool,
    ) -> Outcome:
        """Do work with a budget; on running out of memory, undo its half and do it again with half the tokens.

        Raises:
            BackendError: out of memory with a budget that the config demands, or with the smallest.
        """
        while True:
            tokens = self.tokens(setting, model, checkpointing=checkpointing)
            try:
                return work(tokens)
            except (MemoryError, RuntimeError) as error:
                if not _is_out_of_memory(error):
                    raise
                undo()
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                if setting != AUTO or tokens <= _SMALLEST:
                    raise BackendError(
                        f"out of memory in the update ({reason}): lower max_tokens_per_microbatch (now {tokens}), set "
                        "activation_checkpointing: true, lower max_length, or train a LoRA adapter instead of all weights"
                    ) from error
            # Only here is the error forgotten, and with it the frames that hold the failed attempt's tensors.
            self._limit, self.retries = max(_SMALLEST, tokens // 2), self.retries + 1
            _log.warning("out of memory in the update (%s): again with %d tokens at once, not %d", reason, self._limit, tokens)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


def fitting_tokens(model: Any, *, checkpointing: bool) -> int:
    """Tokens whose activations probably fit the free memory: a power of two times the smallest, so that runs mostly agree."""
    device, config = model.get_input_embeddings().weight.device, model.config.get_text_config()
    tokens = CPU_TOKENS if device.type == "cpu" else GPU_TOKENS
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_ram()
    if free is None:
        return tokens
    layers = int(config.num_hidden_layers)
    copies = layers + _HIDDEN_COPIES if checkpointing else layers * _HIDDEN_COPIES
    for_each = copies * int(config.hidden_size) * model.dtype.itemsize
    while tokens > _SMALLEST and tokens * for_each > _SHARE * free:
        tokens //= 2
    return tokens


def _is_out_of_memory(error: MemoryError | RuntimeError) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error)
