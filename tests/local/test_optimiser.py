from __future__ import annotations

import pytest
import torch

from nat_finetune.local.optimiser import Optimiser, learning_rate
from nat_finetune.local.settings import OptimiserSettings
from nat_finetune.local.weights import TrainedWeights
from tests.fixtures.models import tiny_model


def optimiser_of(**settings):
    model, _ = tiny_model("llama")
    weights = TrainedWeights(model)
    return Optimiser(weights, OptimiserSettings(**{"learning_rate": 0.1, **settings})), weights


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [1, 1, 1, 1, 1, 1]),
        ({"warmup_steps": 4}, [0.25, 0.5, 0.75, 1, 1, 1]),
        ({"schedule": "linear", "total_steps": 5}, [1, 0.8, 0.6, 0.4, 0.2, 0.2]),
        ({"schedule": "linear", "total_steps": 4, "warmup_steps": 2}, [0.5, 1, 1, 0.5, 0.5, 0.5]),
        ({"schedule": "cosine", "total_steps": 4}, [1, 0.853553, 0.5, 0.146447, 0.146447, 0.146447]),
    ],
)
def test_schedules_never_reach_zero(settings, expected):
    rates = [learning_rate(OptimiserSettings(1.0, **settings), step) for step in range(6)]
    assert rates == pytest.approx(expected, abs=1e-6)


def test_weight_decay_shrinks_matrices_and_nothing_else():
    optimiser, weights = optimiser_of(weight_decay=0.5)
    before = {name: value.clone() for name, value in weights.tensors().items()}
    for master in weights.masters.values():
        master.grad = torch.zeros_like(master)
    optimiser.step()
    for name, value in weights.tensors().items():
        torch.testing.assert_close(value, before[name] * (1 - 0.1 * 0.5) if value.ndim > 1 else before[name])


def test_the_gradient_is_scaled_down_to_the_norm_and_reported_before():
    optimiser, weights = optimiser_of(max_grad_norm=0.5)
    masters = list(weights.masters.values())
    for master in masters:
        master.grad = torch.zeros_like(master)
    masters[0].grad.view(-1)[:2] = torch.tensor([3.0, 4.0])
    figures = optimiser.step()
    assert figures == {"grad_norm": pytest.approx(5), "learning_rate": 0.1}
    first = optimiser.tensors()[f"exp_avg/{next(iter(weights.masters))}"].view(-1)[:2]
    assert first.tolist() == pytest.approx([0.1 * 0.3, 0.1 * 0.4], rel=1e-4)
    assert optimiser.steps == 1
    assert all(master.grad is None for master in masters)
