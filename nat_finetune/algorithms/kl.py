"""Distance from the reference policy, estimated on sampled tokens, and which gradient it has.

With d = logprobs - reference_logprobs of the sampled token (Schulman, "Approximating KL divergence", 2020):

    k1   d                   unbiased, can be negative
    k2   d²/2                biased, >= 0
    k3   exp(-d) - 1 + d     unbiased, >= 0

The *value* of an estimator and its *gradient* are two choices. `direct` differentiates the expression (what TRL does): for
k1 that is a constant, so it teaches nothing on average; for k3 it is 1 - exp(-d). `score_function` also follows how the
sampling distribution moves (what NeMo RL does, by a factor of value 1 whose gradient is that of logprobs): for k3 it is
d, in expectation the true gradient of KL(policy || reference).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

KlEstimator = Literal["k1", "k2", "k3"]
KlGradient = Literal["direct", "score_function"]


def k1(d: Tensor) -> Tensor:
    """The log-ratio itself.

    >>> k1(torch.tensor([-0.5]))
    tensor([-0.5000])
    """
    return d


def k2(d: Tensor) -> Tensor:
    """Half the square of the log-ratio.

    >>> k2(torch.tensor([-0.5]))
    tensor([0.1250])
    """
    return d.square() / 2


def k3(d: Tensor) -> Tensor:
    """exp(-d) - 1 + d; `expm1` keeps it exact (and >= 0) near 0.

    >>> k3(torch.tensor([-0.5]))  # e^0.5 - 1.5
    tensor([0.1487])
    """
    return torch.expm1(-d) + d


ESTIMATORS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType({"k1": k1, "k2": k2, "k3": k3})
GRADIENTS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {
        "direct": lambda kl_B_T, logprobs_B_T: kl_B_T,
        "score_function": lambda kl_B_T, logprobs_B_T: kl_B_T * torch.exp(logprobs_B_T - logprobs_B_T.detach()),
    }
)


def token_kl(
    logprobs_B_T: Tensor,
    reference_logprobs_B_T: Tensor,
    loss_mask_B_T: Tensor,
    *,
    estimator: KlEstimator,
    gradient: KlGradient,
    input_clamp: float | None = None,
    output_clamp: float | None = None,
) -> Tensor:
    """KL estimate per token in nats, `[B, T]`, with the named gradient with respect to `logprobs_B_T`.

    `input_clamp` bounds |d| and `output_clamp` the estimate, so that one odd token can't own the step (NeMo RL: 20
    and 10); a token past the output clamp has no gradient. 0 where the loss mask is, whatever stands there.

    >>> logprobs = torch.tensor([[-1.5]], requires_grad=True)
    >>> kl = token_kl(logprobs, torch.tensor([[-1.0]]), torch.tensor([[1]]), estimator="k3", gradient="score_function")
    >>> kl.backward(torch.ones(1, 1)); round(kl.item(), 4), logprobs.grad
    (0.1487, tensor([[-0.5000]]))
    """
    mask_B_T = loss_mask_B_T.bool()
    # Masked here, not in the sum: the gradient of 0 * exp(inf) is NaN.
    logprobs_B_T = torch.where(mask_B_T, logprobs_B_T, 0.0)
    d_B_T = logprobs_B_T - torch.where(mask_B_T, reference_logprobs_B_T, 0.0)
    if input_clamp is not None:
        d_B_T = d_B_T.clamp(-input_clamp, input_clamp)
    kl_B_T = GRADIENTS[gradient](ESTIMATORS[estimator](d_B_T), logprobs_B_T)
    return kl_B_T if output_clamp is None else kl_B_T.clamp(-output_clamp, output_clamp)
