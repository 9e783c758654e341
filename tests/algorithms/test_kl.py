"""KL estimators: values, and the two gradients."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nat_finetune.algorithms.kl import ESTIMATORS, GRADIENTS, k3, token_kl

LOGPROB = st.floats(-8, 0)


@given(LOGPROB, LOGPROB)
def test_k3_is_never_negative_and_zero_only_at_equality(policy: float, reference: float) -> None:
    value = k3(torch.tensor(policy - reference, dtype=torch.float64)).item()
    assert value >= 0
    if abs(policy - reference) > 1e-6:  # below, d²/2 drowns in rounding
        assert value > 0


def test_k3_keeps_its_digits_near_zero() -> None:
    assert k3(torch.tensor(1e-3)).item() == pytest.approx(0.5e-6, rel=1e-2)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_unbiased_estimators_average_to_the_kl(estimator: str) -> None:
    policy, reference = torch.tensor([0.5, 0.3, 0.2]).log(), torch.tensor([0.2, 0.2, 0.6]).log()
    true = (policy.exp() * (policy - reference)).sum()
    ones = torch.ones(3)
    estimates = token_kl(policy, reference, ones, estimator=estimator, gradient="direct")
    torch.testing.assert_close((policy.exp() * estimates).sum(), true)


def test_score_function_k3_has_the_gradient_of_the_true_kl() -> None:
    logits = torch.tensor([0.3, -0.2, 1.1], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64).log()
    policy = logits.log_softmax(-1)
    (true,) = torch.autograd.grad((policy.exp() * (policy - reference)).sum(), logits, retain_graph=True)
    # Expectation over tokens of the gradient of each token's estimate, with the sampling probabilities held fixed.
    estimates = token_kl(policy, reference, torch.ones(3), estimator="k3", gradient="score_function")
    (ours,) = torch.autograd.grad((policy.detach().exp() * estimates).sum(), logits)
    torch.testing.assert_close(ours, true)


@pytest.mark.parametrize(
    ("estimator", "gradient", "expected"),
    [
        ("k1", "direct", 1.0),
        ("k2", "direct", -0.5),
        ("k3", "direct", 1 - math.exp(0.5)),
        ("k1", "score_function", 1 - 0.5),
        ("k2", "score_function", 0.125 - 0.5),
        ("k3", "score_function", -0.5),
    ],
)
def test_gradients_by_hand(estimator: str, gradient: str, expected: float) -> None:
    logprobs = torch.tensor([[-1.5]], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([[-1.0]], dtype=torch.float64)
    token_kl(logprobs, reference, torch.ones(1, 1), estimator=estimator, gradient=gradient).sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.item() == pytest.approx(expected)


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_whatever_stands_at_masked_positions_is_harmless(estimator: str, gradient: str) -> None:
    logprobs = torch.tensor([[-1.0, math.nan, -math.inf]], requires_grad=True)
    reference = torch.tensor([[-1.2, -1.0, 900.0]])
    kl = token_kl(logprobs, reference, torch.tensor([[1, 0, 0]]), estimator=estimator, gradient=gradient)
    kl.sum().backward()
    assert logprobs.grad is not None
    assert kl[0, 1:].tolist() == [0.0, 0.0]
    assert logprobs.grad[0, 1:].tolist() == [0.0, 0.0]
    assert math.isfinite(logprobs.grad[0, 0].item())


def test_clamps_bound_the_value_on_either_side() -> None:
    logprobs, reference, ones = torch.tensor([[-50.0, 0.0]]), torch.tensor([[0.0, -50.0]]), torch.ones(1, 2)
    kl = token_kl(logprobs, reference, ones, estimator="k1", gradient="direct", input_clamp=20.0)
    assert kl.tolist() == [[-20.0, 20.0]]
    kl = token_kl(logprobs, reference, ones, estimator="k3", gradient="direct", input_clamp=20.0, output_clamp=10.0)
    assert kl.tolist() == [[10.0, 10.0]]
