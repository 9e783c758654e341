"""Policy-gradient losses: ratio to the old policy, surrogate, and the sum over tokens.

Every tensor is `[B, T]`, aligned with its tokens. `old_logprobs` are the *trainer's* logprobs at the start of the update
(what the sampler reported is corrected for by `importance`). Whatever stands at masked positions, even NaN, has no
influence and exactly zero gradient.

The value of these losses says little (at ratio 1 it is minus the weighted mean advantage, for CISPO and REINFORCE not even
that); their gradients are what counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from nat_finetune.errors import ConfigError

MAX_LOG_RATIO = 20.0
"""Log-ratios are held within ±20: exp(89) is inf in float32, and inf times an advantage of 0 is NaN."""


@dataclass(frozen=True, slots=True)
class Clip:
    """The trust region of a surrogate, as distances from ratio 1."""

    low: float
    high: float
    dual: float | None = None
    """Dual clip: a token of negative advantage costs at most `-advantage * dual` (arXiv:1912.09729); > 1."""
    ratio_cap: float | None = None
    """The ratio is held below this even where the clip would not bind (INTELLECT-2's two-sided clip); > 1 + high."""

    def __post_init__(self) -> None:
        if not (0 <= self.low <= 1 and self.high >= 0):
            raise ConfigError(f"a clip needs 0 <= low <= 1 and high >= 0, not low={self.low}, high={self.high}")
        if self.dual is not None and not self.dual > 1:
            raise ConfigError(f"dual clip must be above 1 (usually 3), not {self.dual}")
        if self.ratio_cap is not None and not self.ratio_cap > 1 + self.high:
            raise ConfigError(f"ratio_cap must be above 1 + clip high = {1 + self.high}, not {self.ratio_cap}")


@dataclass(frozen=True, slots=True)
class Surrogate:
    """A loss per token (with gradient), and where the clip stopped it."""

    loss_B_T: Tensor
    clipped_B_T: Tensor


@dataclass(frozen=True, slots=True)
class LossOutput:
    """The loss of one micro-batch and its metrics, made so that micro-batches and ranks can simply be combined."""

    loss: Tensor
    """Scalar to call backward on; micro-batches add up to the loss of the step."""
    sums: Mapping[str, Tensor]
    """Metrics that add up over micro-batches (shares and means are already divided by the step's count)."""
    maxima: Mapping[str, Tensor]
    """Metrics of which the largest over micro-batches is meant."""


def token_log_ratio(logprobs_B_T: Tensor, old_logprobs_B_T: Tensor, loss_mask_B_T: Tensor) -> Tensor:
    """Log of each token's probability ratio, in nats; 0 where masked.

    >>> token_log_ratio(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, 0.0]]), torch.tensor([[1, 0]]))
    tensor([[0.5000, 0.0000]])
    """
    log_ratio_B_T = torch.where(loss_mask_B_T.bool(), logprobs_B_T - old_logprobs_B_T, 0.0)
    return log_ratio_B_T.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def sequence_log_ratio(logprobs_B_T: Tensor, old_logprobs_B_T: Tensor, loss_mask_B_T: Tensor) -> Tensor:
    """The mean log-ratio of a row's trained tokens, for each of its tokens (GSPO, arXiv:2507.18071).

    >>> sequence_log_ratio(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -2.1]]), torch.tensor([[1, 1]]))
    tensor([[0.3000, 0.3000]])
    """
    masked_B_T = torch.where(loss_mask_B_T.bool(), logprobs_B_T - old_logprobs_B_T, 0.0)
    mean_B_1 = masked_B_T.sum(-1, keepdim=True) / loss_mask_B_T.sum(-1, keepdim=True).clamp(min=1)
    return mean_B_1.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).expand_as(masked_B_T)


def clipped_surrogate(logprobs_B_T: Tensor, ratio_B_T: Tensor, advantages_B_T: Tensor, clip: Clip | None) -> Surrogate:
    """PPO's pessimistic bound, -min(ratio * A, clipped ratio * A) (arXiv:1707.06347 eq. 7; asymmetric: DAPO eq. 8).

    Ratio 1.5 and A = 1 with clip 0.2: the bound is 1.2 and the gradient stops. With A = -1 it does not:

    >>> surrogate = clipped_surrogate(torch.zeros(1, 2), torch.tensor([[1.5, 1.5]]), torch.tensor([[1.0, -1.0]]),
    ...                               Clip(low=0.2, high=0.2))
    >>> surrogate.loss_B_T, surrogate.clipped_B_T
    (tensor([[-1.2000,  1.5000]]), tensor([[ True, False]]))
    """
    if clip is None:
        raise ConfigError("the clipped surrogate needs clip bounds; without any, use `reinforce`")
    bounded_B_T = ratio_B_T.clamp(1 - clip.low, 1 + clip.high)
    capped_B_T = ratio_B_T if clip.ratio_cap is None else ratio_B_T.clamp(max=clip.ratio_cap)
    loss_B_T = -torch.minimum(capped_B_T * advantages_B_T, bounded_B_T * advantages_B_T)
    if clip.dual is not None:
        ceiling_B_T = torch.minimum(loss_B_T, -clip.dual * advantages_B_T)
        loss_B_T = torch.where(advantages_B_T < 0, ceiling_B_T, loss_B_T)
    too_low_B_T = (ratio_B_T < 1 - clip.low) & (advantages_B_T < 0)
    too_high_B_T = (ratio_B_T > 1 + clip.high) & (advantages_B_T > 0)
    return Surrogate(loss_B_T, too_low_B_T | too_high_B_T)


def cispo_surrogate(logprobs_B_T: Tensor, ratio_B_T: Tensor, advantages_B_T: Tensor, clip: Clip | None) -> Surrogate:
    """REINFORCE weighted by the clipped ratio without gradient: no token is ever silenced (CISPO, arXiv:2506.13585).

    Bounds are 1 - low and 1 + high like everywhere; TRL's `epsilon_high: 5.0` (a cap, no floor) is low 1, high 4.

    >>> cispo_surrogate(torch.tensor([[-0.5]]), torch.tensor([[9.0]]), torch.tensor([[2.0]]), Clip(1.0, 4.0)).loss_B_T
    tensor([[5.]])
    """
    if clip is None:
        raise ConfigError("CISPO needs clip bounds for its weights, such as low 1.0, high 4.0")
    if clip.dual is not None or clip.ratio_cap is not None:
        raise ConfigError("dual clip and ratio_cap mean nothing to CISPO, whose weights are bounded; remove them")
    weight_B_T = ratio_B_T.detach().clamp(1 - clip.low, 1 + clip.high)
    return Surrogate(-weight_B_T * advantages_B_T * logprobs_B_T, weight_B_T != ratio_B_T.detach())


def reinforce_surrogate(logprobs_B_T: Tensor, ratio_B_T: Tensor, advantages_B_T: Tensor, clip: Clip | None) -> Surrogate:
    """-A * logprob, no ratio at all (Williams 1992); right only for samples of the current weights.

    >>> reinforce_surrogate(torch.tensor([[-0.5]]), torch.tensor([[1.0]]), torch.tensor([[2.0]]), None).loss_B_T
    tensor([[1.]])
    """
    if clip is not None:
        raise ConfigError("REINFORCE has no ratio, so clip bounds would do nothing; remove them")
    return Surrogate(-advantages_B_T * logprobs_B_T, torch.zeros_like(ratio_B_T, dtype=torch.bool))


RATIOS: Mapping[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = MappingProxyType(
    {"token": token_log_ratio, "sequence": sequence_log_ratio}
)
SURROGATES: Mapping[str, Callable[[Tensor, Tensor, Tensor, Clip | None], Surrogate]] = MappingProxyType(
    {"clipped": clipped_surrogate, "cispo": cispo_surrogate, "reinforce": reinforce_surrogate}
)


def policy_gradient_loss(
    logprobs_B_T: Tensor,
    old_logprobs_B_T: Tensor,
    advantages_B_T: Tensor,
    loss_mask_B_T: Tensor,
    weights_B_T: Tensor,
    *,
    ratio: str,
    surrogate: str,
    clip: Clip | None,
    total_tokens: float,
    correction_B_T: Tensor | None = None,
    kl_B_T: Tensor | None = None,
    kl_coefficient: float = 0.0,
) -> LossOutput:
    """One micro-batch's share of the step's loss: sum of weights * (correction * surrogate + kl_coefficient * kl).

    `weights_B_T` comes from `reduce`, `correction_B_T` from `importance`, `kl_B_T` from `kl`; `total_tokens` counts the
    trained tokens of the whole step, for the metrics: policy_loss, kl_term, mean_kl (nats), clip_fraction,
    ratio_mean, correction_mean, correction_zeroed; and the largest ratio. Raises ConfigError for a KL without its
    coefficient or the reverse, and from `Clip` and the surrogates.

    Two tokens, ratio 1, advantages 1 and 0.5, token mean:

    >>> logprobs = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    >>> output = policy_gradient_loss(logprobs, logprobs.detach(), torch.tensor([[1.0, 0.5]]), torch.ones(1, 2),
    ...     torch.full((1, 2), 0.5), ratio="token", surrogate="clipped", clip=Clip(0.2, 0.2), total_tokens=2)
    >>> output.loss.backward(); output.loss.item(), logprobs.grad
    (-0.75, tensor([[-0.5000, -0.2500]]))
    """
    if (kl_B_T is None) != (kl_coefficient == 0):
        raise ConfigError(f"kl_coefficient={kl_coefficient} {'needs a KL' if kl_B_T is None else 'ignores the KL given'}")
    mask_B_T = loss_mask_B_T.bool()

    def trained(values_B_T: Tensor) -> Tensor:
        return torch.where(mask_B_T, values_B_T, 0.0)

    def share(values_B_T: Tensor) -> Tensor:
        return trained(values_B_T.detach()).sum() / total_tokens

    ratio_B_T = RATIOS[ratio](logprobs_B_T, old_logprobs_B_T, loss_mask_B_T).exp()
    # Factors are masked before the product too, not only after: the gradient of 0 * NaN is NaN.
    terms = SURROGATES[surrogate](logprobs_B_T, ratio_B_T, trained(advantages_B_T), clip)
    token_loss_B_T = terms.loss_B_T if correction_B_T is None else terms.loss_B_T * trained(correction_B_T)
    policy_loss = (weights_B_T * trained(token_loss_B_T)).sum()
    sums = {
        "policy_loss": policy_loss.detach(),
        "clip_fraction": share(terms.clipped_B_T.to(ratio_B_T.dtype)),
        "ratio_mean": share(ratio_B_T),
    }
    loss = policy_loss
    if kl_B_T is not None:
        kl_term = kl_coefficient * (weights_B_T * trained(kl_B_T)).sum()
        loss = policy_loss + kl_term
        sums |= {"kl_term": kl_term.detach(), "mean_kl": share(kl_B_T)}
    if correction_B_T is not None:
        zeroed_B_T = (correction_B_T == 0).to(ratio_B_T.dtype)
        sums |= {"correction_mean": share(correction_B_T), "correction_zeroed": share(zeroed_B_T)}
    return LossOutput(loss, sums, {"ratio_max": trained(ratio_B_T.detach()).max()})


def combine(outputs: Sequence[LossOutput]) -> LossOutput:
    """The loss and metrics of several micro-batches (or ranks) of one optimiser step; all must have the same metrics.

    >>> one = LossOutput(torch.tensor(1.0), {"clip_fraction": torch.tensor(0.25)}, {"ratio_max": torch.tensor(2.0)})
    >>> two = combine([one, one]); two.loss.item(), two.sums["clip_fraction"].item(), two.maxima["ratio_max"].item()
    (2.0, 0.5, 2.0)
    """
    first, *rest = outputs
    for other in rest:
        if other.sums.keys() != first.sums.keys() or other.maxima.keys() != first.maxima.keys():
            raise ConfigError("micro-batches of one step have different metrics; they must use the same losses")
    return LossOutput(
        loss=torch.stack([output.loss for output in outputs]).sum(),
        sums={name: torch.stack([output.sums[name] for output in outputs]).sum() for name in first.sums},
        maxima={name: torch.stack([output.maxima[name] for output in outputs]).max() for name in first.maxima},
    )
