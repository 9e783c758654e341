"""Preference losses on the log-probabilities of a chosen and a rejected completion (DPO, arXiv:2305.18290).

With z = beta * (logratio of chosen - logratio of rejected), logratio = policy - reference, in nats:

    sigmoid   -logsigmoid(z)                                          eq. 7
              -(1 - s) logsigmoid(z) - s logsigmoid(-z)               cDPO: label smoothing s, the share of wrong labels
    robust    (-(1 - s) logsigmoid(z) + s logsigmoid(-z)) / (1 - 2s)  arXiv:2403.00409: unbiased if s of the labels flip
    hinge     max(0, 1 - z)                                           as in SLiC, arXiv:2305.10425
    ipo       (z / beta - 1 / (2 beta))²                              arXiv:2310.12036 eq. 17

A completion's log-probability is the sum over its tokens, or their mean ("per length"). `sigmoid_norm` is `sigmoid`, and
`ipo` itself is meant, per length; `ipo_sum` is IPO on sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from nat_finetune.errors import ConfigError, DataError


@dataclass(frozen=True, slots=True)
class PreferenceLoss:
    """The loss of one micro-batch of pairs, and what it says about each pair (`_B`, without gradient)."""

    loss: Tensor
    """Scalar to call backward on; micro-batches add up to the loss of the step."""
    pair_loss_B: Tensor
    """The preference loss of each pair, before weights."""
    sft_loss_B: Tensor | None
    """The chosen completion's negative log-likelihood, before weights, where it was given."""
    chosen_logratio_B: Tensor
    rejected_logratio_B: Tensor
    chosen_reward_B: Tensor
    """Implicit reward: beta * logratio."""
    rejected_reward_B: Tensor
    margin_B: Tensor
    """chosen_reward - rejected_reward."""
    correct_B: Tensor
    """True where the margin is above 0; a tie is not correct."""


def sequence_logprobs(logprobs_B_T: Tensor, loss_mask_B_T: Tensor, *, average: bool) -> Tensor:
    """Log-probability of each row's trained tokens in nats, `[B]`: their sum, or their mean when `average`.

    Raises DataError for a row without trained tokens: it has nothing to prefer.

    >>> sequence_logprobs(torch.tensor([[9.0, -1.0, -2.0]]), torch.tensor([[0, 1, 1]]), average=True)
    tensor([-1.5000])
    """
    tokens_B = loss_mask_B_T.sum(-1)
    if bool((tokens_B == 0).any()):
        raise DataError(f"row {int((tokens_B == 0).nonzero()[0])} of the pairs has no trained token; drop the pair")
    total_B = torch.where(loss_mask_B_T.bool(), logprobs_B_T, 0.0).sum(-1)
    return total_B / tokens_B if average else total_B


def sigmoid_loss(logratio_gap_B: Tensor, beta: float, label_smoothing: float) -> Tensor:
    """Cross-entropy of "chosen is better"; smoothed, `label_smoothing` is the share of labels believed to be wrong.

    >>> round(sigmoid_loss(torch.zeros(1), 0.1, 0.0).item(), 4)  # ln 2
    0.6931
    """
    _require_smoothing_below_half(label_smoothing, allow_half=True)
    z_B = beta * logratio_gap_B
    return -(1 - label_smoothing) * logsigmoid(z_B) - label_smoothing * logsigmoid(-z_B)


def robust_loss(logratio_gap_B: Tensor, beta: float, label_smoothing: float) -> Tensor:
    """The sigmoid loss corrected for flipped labels; can be negative.

    >>> round(robust_loss(torch.tensor([10.0]), 0.1, 0.1).item(), 4)  # (0.9 * 0.3133 - 0.1 * 1.3133) / 0.8
    0.1883
    """
    _require_smoothing_below_half(label_smoothing, allow_half=False)
    z_B = beta * logratio_gap_B
    blurred_B = -(1 - label_smoothing) * logsigmoid(z_B) + label_smoothing * logsigmoid(-z_B)
    return blurred_B / (1 - 2 * label_smoothing)


def hinge_loss(logratio_gap_B: Tensor, beta: float, label_smoothing: float) -> Tensor:
    """Linear until the margin is 1, then nothing.

    >>> hinge_loss(torch.tensor([5.0, 20.0]), 0.1, 0.0)
    tensor([0.5000, 0.0000])
    """
    _refuse_smoothing("hinge", label_smoothing)
    return torch.relu(1 - beta * logratio_gap_B)


def ipo_loss(logratio_gap_B: Tensor, beta: float, label_smoothing: float) -> Tensor:
    """Squared distance of the log-ratio gap from its target 1 / (2 beta): never satisfied by going further.

    >>> ipo_loss(torch.tensor([0.0, 5.0]), 0.1, 0.0)
    tensor([25.,  0.])
    """
    _refuse_smoothing("ipo", label_smoothing)
    return (logratio_gap_B - 1 / (2 * beta)).square()


PAIR_LOSSES: Mapping[str, Callable[[Tensor, float, float], Tensor]] = MappingProxyType(
    {
        "sigmoid": sigmoid_loss,
        "sigmoid_norm": sigmoid_loss,
        "robust": robust_loss,
        "hinge": hinge_loss,
        "ipo": ipo_loss,
        "ipo_sum": ipo_loss,
    }
)
"""By the config's name: (gap of log-ratios, beta, label smoothing) → loss of each pair."""

PER_LENGTH = frozenset({"sigmoid_norm", "ipo"})
"""Losses whose log-probabilities are means over tokens: `sequence_logprobs(..., average=True)`."""


def preference_loss(
    policy_chosen_B: Tensor,
    policy_rejected_B: Tensor,
    reference_chosen_B: Tensor,
    reference_rejected_B: Tensor,
    *,
    loss: str,
    beta: float,
    total_pairs: float,
    label_smoothing: float = 0.0,
    pair_weights_B: Tensor | None = None,
    preference_weight: float = 1.0,
    chosen_nll_B: Tensor | None = None,
    sft_weight: float = 0.0,
) -> PreferenceLoss:
    """One micro-batch's share of the step's loss: sum over pairs of weight * (preference + SFT term) / `total_pairs`.

    The four inputs are `sequence_logprobs`, averaged where `loss` is in `PER_LENGTH`. `total_pairs` is a constant: the
    number of pairs of the step (or the sum of their weights), never recomputed per micro-batch. `chosen_nll_B` is the
    negative of the chosen's log-probability, summed or averaged over tokens as the SFT term should be. Raises
    ConfigError for impossible numbers.

    Policy and reference agree, so nothing is preferred yet: ln 2.

    >>> logprobs = torch.tensor([-3.0])
    >>> result = preference_loss(logprobs, logprobs - 1, logprobs, logprobs - 1, loss="sigmoid", beta=0.1, total_pairs=1)
    >>> round(result.loss.item(), 4), result.margin_B.item(), result.correct_B.item()
    (0.6931, 0.0, False)
    """
    if not beta > 0:
        raise ConfigError(f"beta must be above 0, not {beta}")
    if not total_pairs > 0:
        raise DataError(f"a preference loss can't be averaged over {total_pairs} pairs")
    if sft_weight != 0 and chosen_nll_B is None:
        raise ConfigError(f"sft_weight={sft_weight} needs the chosen's negative log-likelihood")
    chosen_logratio_B = policy_chosen_B - reference_chosen_B
    rejected_logratio_B = policy_rejected_B - reference_rejected_B
    pair_loss_B = PAIR_LOSSES[loss](chosen_logratio_B - rejected_logratio_B, beta, label_smoothing)
    objective_B = preference_weight * pair_loss_B
    if chosen_nll_B is not None:
        objective_B = objective_B + sft_weight * chosen_nll_B
    if pair_weights_B is not None:
        objective_B = objective_B * pair_weights_B
    chosen_reward_B, rejected_reward_B = beta * chosen_logratio_B.detach(), beta * rejected_logratio_B.detach()
    return PreferenceLoss(
        loss=objective_B.sum() / total_pairs,
        pair_loss_B=pair_loss_B.detach(),
        sft_loss_B=None if chosen_nll_B is None else chosen_nll_B.detach(),
        chosen_logratio_B=chosen_logratio_B.detach(),
        rejected_logratio_B=rejected_logratio_B.detach(),
        chosen_reward_B=chosen_reward_B,
        rejected_reward_B=rejected_reward_B,
        margin_B=chosen_reward_B - rejected_reward_B,
        correct_B=chosen_reward_B > rejected_reward_B,
    )


def _require_smoothing_below_half(label_smoothing: float, *, allow_half: bool) -> None:
    if not 0 <= label_smoothing <= 0.5 or (label_smoothing == 0.5 and not allow_half):
        limit = "0 to 0.5" if allow_half else "0 to below 0.5 (at 0.5 labels say nothing and it divides by 0)"
        raise ConfigError(f"label_smoothing must be from {limit}, not {label_smoothing}")


def _refuse_smoothing(loss: str, label_smoothing: float) -> None:
    if label_smoothing != 0:
        raise ConfigError(f"label_smoothing={label_smoothing} has no meaning for the {loss} loss; use sigmoid or robust")
