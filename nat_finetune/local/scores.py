"""The trainer's view of the tokens: log-probabilities with gradient, logits only where a token is trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nat_finetune.algorithms.logprobs import TokenScores, selected_logprobs
from nat_finetune.data.batches import MicroBatch, Rows
from nat_finetune.data.sharing import Plan
from nat_finetune.errors import BackendError
from nat_finetune.local.attention import ATTENTION
from nat_finetune.local.branches import Branches
from nat_finetune.local.onednn import ROWS, onednn_linear
from nat_finetune.local.products import fast_product, fits
from nat_finetune.local.trained_blocks import trained_blocks

TEMPERATURE = "temperature"
"""Column with the temperature at which each token was sampled."""
SAMPLER = "sampler_logprobs"
"""Column with the log-probability that the sampler drew each token with."""

MASKED_TREE_TOKENS = 1024
"""Attention by a mask costs the square of a tree's length: beyond this, reading a beginning again is cheaper."""

_ANY = 1 << 30
_LOGIT_VALUES = {"cpu": 1 << 21}
"""Most logits held at once: on a CPU what its caches hold (measured: 1.4 times as fast as 128 MiB)."""


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
        self.device: torch.device = self._head.weight.device
        values = _LOGIT_VALUES.get(self.device.type, 1 << 25)
        self._chunk_tokens = max(32, values // int(base.config.get_text_config().vocab_size))
        self._product = fast_product() if fits(self._head.weight) else functional.linear
        self._blocks = trained_blocks(self._decoder)
        self._mask_prepared = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=self.device)
        # `slot_attention` is in place where the engine found that the model gives the same with it.
        branches = base.config._attn_implementation == ATTENTION
        self.packed = branches and self.device.type == "cpu"
        """Whether rows are read in one sequence: on a CPU, where attention goes part by part."""
        self._multiple = ROWS if self._product is onednn_linear else 1  # filled up once, not in each product
        self.tree_tokens = (_ANY if self.packed else MASKED_TREE_TOKENS) if branches else 0
        """Most tokens of a tree of inputs that begin alike; 0 where the model's attention can't read trees."""

    def scores(self, batch: MicroBatch) -> TokenScores:
        """Log-probabilities (nats, at each token's sampling temperature) and entropies, `[R, T]`; 0 where not trained."""
        hidden_L_T_D, places_R_T = self._hidden(batch)
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
                places_B_T=places_R_T,
                product=self._product,
            )
            for temperature in torch.unique(temperature_R_T[batch.loss_mask_R_T]).tolist()
        ]
        first, *others = parts
        return TokenScores(
            logprobs_B_T=sum((other.logprobs_B_T for other in others), first.logprobs_B_T),
            entropy_B_T=sum((other.entropy_B_T for other in others), first.entropy_B_T),
        )

    def _hidden(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Hidden states, and for each token of each row where among them its own stands."""
        if batch.parts is None:
            # No attention mask: padding is on the right, where a causal model never looks.
            hidden: Tensor = self._decoder(input_ids=batch.input_ids_L_T, use_cache=False).last_hidden_state
            return hidden, batch.places_R_T
        branches = Branches(batch.parts, batch.positions_L_T)
        if self._blocks is not None and len(batch.input_ids_L_T) == 1:
            wanted_P, places_R_T = _wanted(batch, self._multiple)
            return self._blocks.hidden(batch.input_ids_L_T, batch.positions_L_T, branches, wanted_P), places_R_T
        hidden = self._decoder(
            input_ids=batch.input_ids_L_T,
            position_ids=batch.positions_L_T,
            attention_mask=self._mask_prepared,  # four dimensions: transformers makes none itself; `slots` knows the real one
            use_cache=False,
            slots=branches,
        ).last_hidden_state
        return hidden, batch.places_R_T

    def plans(self, rows: Rows, units: Sequence[Sequence[int]], tokens: int) -> list[Plan]:
        """Sort units into micro-batches of at most so many tokens, as this model reads them; see `Rows.plans`."""
        tree_tokens = min(tokens, self.tree_tokens)
        return rows.plans(units, max_tokens=tokens, tree_tokens=tree_tokens, packed=self.packed, multiple=self._multiple)

    @torch.no_grad()
    def score_into(self, rows: Rows, column: str, plans: Sequence[Plan]) -> None:
        """Write the log-probabilities of all trained tokens of some plans into a column of their rows."""
        rows.new_column(column)
        for plan in plans:
            batch = rows.micro_batch(plan, self.device)
            rows.store(column, batch, self.scores(batch).logprobs_B_T)


def _wanted(batch: MicroBatch, multiple: int) -> tuple[Tensor, Tensor]:
    """Where the hidden states stand that trained tokens are predicted from, `[P]`, and the rows' places among those.

    Filled up to a multiple with others, so that no product has to fill up its rows.
    """
    wanted_N = torch.zeros(batch.input_ids_L_T.numel(), dtype=torch.bool)
    wanted_N[batch.places_R_T[:, :-1][batch.loss_mask_R_T[:, 1:]]] = True
    more = -int(wanted_N.sum()) % multiple
    wanted_N[(~wanted_N).nonzero()[:more]] = True
    return wanted_N.nonzero()[:, 0], (wanted_N.cumsum(0) - 1)[batch.places_R_T]


def bare_model(model: Any) -> Any:
    """The transformers model inside a peft wrapper, or the model itself; adapters stay in its layers."""
    from peft import PeftModel

    return model.get_base_model() if isinstance(model, PeftModel) else model
