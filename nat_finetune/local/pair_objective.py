"""The preference loss of an optimiser step on pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from nat_finetune.algorithms.dpo import PER_LENGTH, preference_loss, sequence_logprobs
from nat_finetune.algorithms.logprobs import TokenScores
from nat_finetune.algorithms.policy_gradient import LossOutput
from nat_finetune.data.batches import MicroBatch
from nat_finetune.data.sharing import Plan
from nat_finetune.errors import BackendError
from nat_finetune.local.optimise import Learner, Unit
from nat_finetune.local.pair_rows import PairRows
from nat_finetune.local.settings import PreferenceSettings

REFERENCE = "reference_logprobs"


class PairObjective:
    """Implements `optimise.Objective` for DPO and its relatives."""

    def __init__(self, encoded: PairRows, settings: PreferenceSettings) -> None:
        self.rows = encoded.rows
        self._encoded = encoded
        self._settings = settings

    @property
    def items(self) -> Sequence[Sequence[Unit]]:
        """One item and one unit a pair: both of its rows are in one micro-batch."""
        return self._encoded.items

    def begin(self, learner: Learner, plans: Sequence[Plan], *, single_step: bool) -> Mapping[str, float]:
        """Score every row by the reference, unless that was done for an update on the same pairs."""
        if learner.reference is None:
            raise BackendError("preference losses need a reference policy")
        reference, cache = learner.reference, learner.reference_cache
        measured = {"prompts_truncated": float(self._encoded.truncated)} if self._encoded.truncated else {}
        known = cache.get(self.rows, reference.digest)
        if known is not None:
            self.rows.columns[REFERENCE] = known
            return measured
        rows = self.rows.without_columns({REFERENCE})
        with reference.active():
            learner.scorer.score_into(self.rows, REFERENCE, plans)
        cache.put(rows, reference.digest, self.rows.columns[REFERENCE])
        return measured

    def check(self, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """Nothing to hold against: the loss does not use the sampler's logprobs."""
        return {}

    def step(self, items: Sequence[int]) -> Callable[[MicroBatch, TokenScores, Sequence[int]], LossOutput]:
        """The loss of an optimiser step on these pairs; the normaliser is their number."""

        def loss(batch: MicroBatch, scores: TokenScores, units: Sequence[int]) -> LossOutput:
            return self._loss(batch, scores, [items[unit] for unit in units], total=float(len(items)))

        return loss

    def _loss(self, batch: MicroBatch, scores: TokenScores, pairs: Sequence[int], *, total: float) -> LossOutput:
        settings, device = self._settings, scores.logprobs_B_T.device
        place = {row: index for index, row in enumerate(batch.rows.tolist())}
        sides = [self.items[pair][0] for pair in pairs]
        chosen_B = torch.tensor([place[chosen] for chosen, _ in sides], device=device)
        rejected_B = torch.tensor([place[rejected] for _, rejected in sides], device=device)

        def summed(logprobs_R_T: Tensor, *, average: bool) -> Tensor:
            return sequence_logprobs(logprobs_R_T, batch.loss_mask_R_T, average=average)

        average = settings.loss in PER_LENGTH
        policy_R = summed(scores.logprobs_B_T, average=average)
        reference_R = summed(batch.columns[REFERENCE], average=average)
        chosen_nll_B = None
        if settings.sft_loss_weight:
            chosen_nll_B = -summed(scores.logprobs_B_T, average=settings.sft_average_log_probs)[chosen_B]
        result = preference_loss(
            policy_R[chosen_B],
            policy_R[rejected_B],
            reference_R[chosen_B],
            reference_R[rejected_B],
            loss=settings.loss,
            beta=settings.beta,
            total_pairs=total,
            label_smoothing=settings.label_smoothing,
            pair_weights_B=torch.from_numpy(self._encoded.weights[list(pairs)]).to(device),
            preference_weight=settings.preference_loss_weight,
            chosen_nll_B=chosen_nll_B,
            sft_weight=settings.sft_loss_weight,
        )
        whole_R = summed(scores.logprobs_B_T.detach(), average=False)
        sums = {
            "preference_loss": result.pair_loss_B.sum() / total,
            "chosen_reward": result.chosen_reward_B.sum() / total,
            "rejected_reward": result.rejected_reward_B.sum() / total,
            "chosen_logratio": result.chosen_logratio_B.sum() / total,
            "margin": result.margin_B.sum() / total,
            "accuracy": result.correct_B.float().sum() / total,
            "chosen_logprob": whole_R[chosen_B].sum() / total,
            "rejected_logprob": whole_R[rejected_B].sum() / total,
            "pairs": torch.tensor(float(len(pairs))),
        }
        if result.sft_loss_B is not None:
            sums["sft_loss"] = result.sft_loss_B.sum() / total
        return LossOutput(result.loss, sums, {})
