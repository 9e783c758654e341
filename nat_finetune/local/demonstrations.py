"""Supervised finetuning: demonstrations to rows, and the negative log-likelihood of their completions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from nat_finetune.algorithms.logprobs import TokenScores
from nat_finetune.algorithms.policy_gradient import LossOutput
from nat_finetune.data.batches import MicroBatch, Rows
from nat_finetune.data.sharing import Plan
from nat_finetune.local.chat import ChatFormat
from nat_finetune.local.optimise import Learner, Unit
from nat_finetune.local.pair_rows import completion_ids
from nat_finetune.local.scores import TEMPERATURE
from nat_finetune.local.settings import SupervisedSettings
from nat_finetune.types import Demonstration, Dropped, DropReason


class DemonstrationObjective:
    """Implements `optimise.Objective`: the mean over the step's trained tokens, or over its completions, of -log p."""

    def __init__(
        self,
        demonstrations: Sequence[Demonstration],
        chat: ChatFormat,
        settings: SupervisedSettings,
        *,
        max_length: int | None,
        truncate_prompts: bool = False,
    ) -> None:
        self.dropped: list[Dropped] = []
        self._settings = settings
        self._truncated = 0
        sides: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        weights: list[float] = []
        for demonstration in demonstrations:
            prompt, completion = _ids(demonstration, chat)
            room = len(prompt) if max_length is None else max_length - len(completion)
            if truncate_prompts and 1 <= room < len(prompt):
                prompt = prompt[-room:]
                self._truncated += 1
            if room < len(prompt):
                self.dropped.append(_too_long(demonstration, len(prompt) + len(completion), max_length))
                continue
            sides.append((prompt, completion))
            weights.append(demonstration.weight)
        self.rows = Rows.of([p + c for p, c in sides], [[0] * len(p) + [1] * len(c) for p, c in sides])
        self.rows.columns[TEMPERATURE] = np.ones(len(self.rows.token_ids_N), np.float32)
        self._weights_N = np.array(weights, np.float32)
        self._tokens_N = np.array([len(completion) for _, completion in sides], np.float32)

    @property
    def items(self) -> Sequence[Sequence[Unit]]:
        """One row each."""
        return [[(row,)] for row in range(len(self.rows))]

    def begin(self, learner: Learner, plans: Sequence[Plan], *, single_step: bool) -> Mapping[str, float]:
        """Nothing is held against."""
        return {"prompts_truncated": float(self._truncated)} if self._truncated else {}

    def check(self, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """Nothing to hold against: the loss does not use the sampler's logprobs."""
        return {}

    def step(self, items: Sequence[int]) -> Callable[[MicroBatch, TokenScores, Sequence[int]], LossOutput]:
        """The loss of an optimiser step on these demonstrations; the normaliser is the step's, whatever the micro-batches."""
        own = list(items)
        by_token = self._settings.reduction == "token_mean"
        counts_N = self._tokens_N if by_token else np.ones_like(self._tokens_N)
        total = float((self._weights_N * counts_N)[own].sum())
        tokens = float(self._tokens_N[own].sum())

        def loss(batch: MicroBatch, scores: TokenScores, units: Sequence[int]) -> LossOutput:
            device = scores.logprobs_B_T.device
            weights_R = torch.from_numpy(self._weights_N[batch.rows]).to(device)
            tokens_R = torch.from_numpy(self._tokens_N[batch.rows]).to(device)
            nll_R = -torch.where(batch.loss_mask_R_T, scores.logprobs_B_T, 0.0).sum(-1)
            value = (weights_R * (nll_R if by_token else nll_R / tokens_R)).sum() / total
            sums = {"nll": nll_R.detach().sum() / tokens, "tokens": tokens_R.sum()}
            return LossOutput(value, sums, {})

        return loss


def _ids(demonstration: Demonstration, chat: ChatFormat) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The sampled ids where they are known, else what the chat template writes, its end-of-turn token included."""
    if demonstration.prompt_ids is not None and demonstration.completion_ids:
        return demonstration.prompt_ids, demonstration.completion_ids
    where = demonstration.provenance.record or f"example {demonstration.provenance.example_id!r}"
    return completion_ids(demonstration.context, demonstration.completion, chat, where=where)


def _too_long(demonstration: Demonstration, length: int, limit: int | None) -> Dropped:
    where, detail = demonstration.provenance, f"{length} tokens, max_length is {limit}"
    return Dropped(
        "demonstration", DropReason.TOO_LONG, detail, where.example_id, where.rollout_id, where.chosen_call, record=where.record
    )
