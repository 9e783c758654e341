"""The trainer's view of the tokens: log-probabilities with gradient, logits only where a token is trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from nat_finetune.algorithms.logprobs import TokenScores, selected_logprobs
from nat_finetune.data.batches import MicroBatch, Plan, Rows
from nat_finetune.errors import BackendError

TEMPERATURE = "temperature"
"""Column with the temperature at which each token was sampled."""

_LOGIT_VALUES = 1 << 25
"""Most logits held at once (128 MiB of float32)."""


class TrainerScorer:
    """Scores the trained tokens of micro-batches with a causal language model, plain or inside a peft wrapper."""

    def __init__(self, model: Any) -> None:
        base = bare_model(model)
        self._decoder = base.get_decoder()
        self._head = base.get_output_embeddings()
        if self._head is None:
            raise BackendError(f"{type(base).__name__} has no output layer: expected a causal language model")
        config = base.config.to_dict()
        self._softcap: float | None = config.get("final_logit_softcapping")
        self._logit_scale = float(config.get("logit_scale") or 1.0) / float(config.get("logits_scaling") or 1.0)
        self._chunk_tokens = max(64, _LOGIT_VALUES // int(base.config.get_text_config().vocab_size))
        self.device: torch.device = self._head.weight.device

    def scores(self, batch: MicroBatch) -> TokenScores:
        """Log-probabilities (nats, at each token's sampling temperature) and entropies, `[R, T]`; 0 where not trained."""
        # No attention mask: padding is on the right, where a causal model never looks.
        hidden_L_T_D = self._decoder(input_ids=batch.input_ids_L_T, use_cache=False).last_hidden_state
        temperature_R_T = batch.columns[TEMPERATURE]
        parts = [
            selected_logprobs(
                hidden_L_T_D,
                self._head,
                batch.token_ids_R_T,
                batch.loss_mask_R_T & (temperature_R_T == temperature),
                temperature=temperature,
                chunk_tokens=self._chunk_tokens,
                softcap=self._softcap,
                logit_scale=self._logit_scale,
                source_B=batch.source_R,
            )
            for temperature in torch.unique(temperature_R_T[batch.loss_mask_R_T]).tolist()
        ]
        first, *others = parts
        return TokenScores(
            logprobs_B_T=sum((other.logprobs_B_T for other in others), first.logprobs_B_T),
            entropy_B_T=sum((other.entropy_B_T for other in others), first.entropy_B_T),
        )

    @torch.no_grad()
    def score_into(self, rows: Rows, column: str, plans: Sequence[Plan]) -> None:
        """Write the log-probabilities of all trained tokens of some plans into a column of their rows."""
        rows.new_column(column)
        for plan in plans:
            batch = rows.micro_batch(plan, self.device)
            rows.store(column, batch, self.scores(batch).logprobs_B_T)


def bare_model(model: Any) -> Any:
    """The transformers model inside a peft wrapper, or the model itself; adapters stay in its layers."""
    from peft import PeftModel

    return model.get_base_model() if isinstance(model, PeftModel) else model
