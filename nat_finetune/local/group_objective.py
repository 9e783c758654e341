"""Groups of trajectories to rows with advantages, and the policy-gradient loss of an optimiser step on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from nat_finetune.algorithms.importance import importance_correction
from nat_finetune.algorithms.kl import k3, token_kl
from nat_finetune.algorithms.logprobs import TokenScores
from nat_finetune.algorithms.policy_gradient import Clip, LossOutput, policy_gradient_loss
from nat_finetune.algorithms.reduce import REDUCTIONS, StepCounts
from nat_finetune.data.batches import MicroBatch
from nat_finetune.data.sharing import Plan
from nat_finetune.errors import AgreementError, BackendError
from nat_finetune.local.group_rows import ADVANTAGES, GroupRows
from nat_finetune.local.optimise import Learner, Unit
from nat_finetune.local.scores import SAMPLER
from nat_finetune.local.settings import PolicyGradientSettings

OLD, REFERENCE = "old_logprobs", "reference_logprobs"


class GroupObjective:
    """Implements `optimise.Objective` for GRPO and its relatives.

    The ratio's denominator: in an update of one optimiser step the sampler's logprobs, which are those of the same weights; in
    one of several steps the trainer's own, computed before the first. With an importance correction always the trainer's.
    """

    def __init__(self, encoded: GroupRows, settings: PolicyGradientSettings, *, agreement_bound: float) -> None:
        """`agreement_bound`: the largest difference, nats, between sampler and trainer at the same weights."""
        self.rows = encoded.rows
        self._encoded = encoded
        self._settings = settings
        self._agreement_bound = agreement_bound
        self._single_step = True
        choices = settings.preset
        self._clip: Clip | None = None
        if choices.clip_low is not None and choices.clip_high is not None:
            self._clip = Clip(choices.clip_low, choices.clip_high, choices.dual_clip, choices.ratio_cap)

    @property
    def items(self) -> Sequence[Sequence[Unit]]:
        """One item a trajectory, one unit a segment."""
        return self._encoded.items

    def begin(self, learner: Learner, plans: Sequence[Plan], *, single_step: bool) -> Mapping[str, float]:
        """Score reference and old policy; returns what is known of the rows, and how far sampler and trainer are apart."""
        self._single_step = single_step
        tokens = [sum(int(self.rows.trained_tokens[row]) for unit in units for row in unit) for units in self.items]
        trained = self._encoded.trained_tokens
        about = {
            "zero_advantage_share": self._encoded.zero_advantage_tokens / trained if trained else 0.0,
            "response_tokens_mean": sum(tokens) / len(tokens) if tokens else 0.0,
        }
        if self._settings.preset.kl_coefficient:
            if learner.reference is None:
                raise BackendError("kl_coefficient is above 0 and there is no reference policy")
            with learner.reference.active():
                learner.scorer.score_into(self.rows, REFERENCE, plans)
        if single_step:
            self.rows.columns[OLD] = self.rows.columns[SAMPLER]
            return about
        learner.scorer.score_into(self.rows, OLD, plans)
        compared = self.rows.loss_mask_N & np.repeat(self._encoded.current, self.rows.lengths)
        apart = np.abs(self.rows.columns[OLD] - self.rows.columns[SAMPLER])[compared]
        return about | {
            "sampler_trainer_max_abs": float(apart.max(initial=0.0)),
            "sampler_trainer_mean_abs": float(apart.mean()) if len(apart) else 0.0,
        }

    def check(self, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """The first step's ratio: 1, as no weight has changed. Returns its distance from 1.

        Raises:
            AgreementError: the sampler's logprobs are not the trainer's, or two passes of the trainer differ: every gradient
                would be wrong.
        """
        found, bound = metrics["sampler_trainer_max_abs"], self._agreement_bound
        if not found <= bound:
            raise AgreementError(
                f"sampler and trainer differ by up to {found:.3g} nats on tokens that these very weights sampled, more than "
                f"agreement.bound = {bound:g}: the weights are unchanged; set dtype: float32 for the model, or raise the bound "
                "if its precision explains it"
            )
        ratio_off = math.expm1(metrics["log_ratio_max_abs"])
        if not metrics["log_ratio_max_abs"] <= bound:
            raise AgreementError(
                f"the ratio at step 0 is {1 + ratio_off:.4g} where it must be 1, for no weight has changed: two passes of the "
                f"trainer over the same tokens differ by up to {metrics['log_ratio_max_abs']:.3g} nats, more than "
                f"agreement.bound = {bound:g}; something in the model is random or depends on the batch (dropout, routing)"
            )
        return {"ratio_start_off_max_abs": ratio_off}

    def step(self, items: Sequence[int]) -> Callable[[MicroBatch, TokenScores, Sequence[int]], LossOutput]:
        """The loss of an optimiser step on these trajectories."""
        rows = [row for item in items for unit in self.items[item] for row in unit]
        counts = StepCounts(
            tokens=float(self.rows.trained_tokens[rows].sum()),
            sequences=len(rows),
            rollouts=len(items),
            max_length=self._settings.length_limit or 0,
        )
        compared = max(1.0, float(self.rows.trained_tokens[rows][self._encoded.current[rows]].sum()))

        def loss(batch: MicroBatch, scores: TokenScores, units: Sequence[int]) -> LossOutput:
            output = self._loss(batch, scores, counts)
            return self._with_metrics(output, batch, scores, counts.tokens, compared)

        return loss

    def _loss(self, batch: MicroBatch, scores: TokenScores, counts: StepCounts) -> LossOutput:
        choices, mask_R_T, columns = self._settings.preset, batch.loss_mask_R_T.float(), batch.columns
        rollout_tokens_R = torch.from_numpy(self._encoded.rollout_tokens[batch.rows]).to(mask_R_T.device)
        kl_R_T = None
        if choices.kl_coefficient:
            kl_R_T = token_kl(
                scores.logprobs_B_T,
                columns[REFERENCE],
                mask_R_T,
                estimator=choices.kl_estimator,
                gradient=choices.kl_gradient,
            )
        return policy_gradient_loss(
            scores.logprobs_B_T,
            self._old(batch, scores),
            columns[ADVANTAGES],
            mask_R_T,
            REDUCTIONS[choices.reduction](mask_R_T, rollout_tokens_R, counts),
            ratio=choices.ratio,
            surrogate=choices.surrogate,
            clip=self._clip,
            total_tokens=counts.tokens,
            correction_B_T=self._correction(batch, scores, mask_R_T),
            kl_B_T=kl_R_T,
            kl_coefficient=choices.kl_coefficient,
        )

    def _old(self, batch: MicroBatch, scores: TokenScores) -> Tensor:
        if self._single_step and self._settings.importance is not None:
            return scores.logprobs_B_T.detach()
        return batch.columns[OLD]

    def _correction(self, batch: MicroBatch, scores: TokenScores, mask_R_T: Tensor) -> Tensor | None:
        chosen = self._settings.importance
        if chosen is None:
            return None
        return importance_correction(
            self._old(batch, scores), batch.columns[SAMPLER], mask_R_T, mode=chosen.mode, low=chosen.low, high=chosen.high
        )

    def _with_metrics(
        self, output: LossOutput, batch: MicroBatch, scores: TokenScores, tokens: float, compared: float
    ) -> LossOutput:
        mask_R_T = batch.loss_mask_R_T
        logprobs_R_T = scores.logprobs_B_T.detach()

        def share(values_R_T: Tensor) -> Tensor:
            return torch.where(mask_R_T, values_R_T, 0.0).sum() / tokens

        sums = {("kl_ref" if name == "mean_kl" else name): value for name, value in output.sums.items()}
        sums |= {
            "approx_kl": share(k3(logprobs_R_T - self._old(batch, scores).detach())),
            "entropy": share(scores.entropy_B_T),
            "advantage_abs_mean": share(batch.columns[ADVANTAGES].abs()),
            "tokens": mask_R_T.sum(),
        }
        maxima = dict(output.maxima)
        current_R = torch.from_numpy(self._encoded.current[batch.rows]).to(mask_R_T.device)
        known_R_T = mask_R_T & current_R[:, None]
        moved_R_T = torch.where(known_R_T, (logprobs_R_T - self._old(batch, scores).detach()).abs(), 0.0)
        maxima["log_ratio_max_abs"] = moved_R_T.max()
        if self._single_step:
            apart_R_T = torch.where(known_R_T, (logprobs_R_T - batch.columns[SAMPLER]).abs(), 0.0)
            sums["sampler_trainer_mean_abs"] = apart_R_T.sum() / compared
            maxima["sampler_trainer_max_abs"] = apart_R_T.max()
        return LossOutput(output.loss, sums, maxima)
