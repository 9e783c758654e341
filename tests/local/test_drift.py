"""The KL to the reference on fresh samples, against the exact sum over every possible completion."""

import pytest
import torch

from nat_finetune.local.drift import kl_of_fresh_samples
from tests.fixtures.models import tiny_model
from tests.fixtures.training import learner_of, tiny_policy

PROMPT = (1, 20, 21, 22)


async def test_nothing_moved_nothing_apart():
    with tiny_policy() as policy:
        learner = learner_of(policy, reference=True)
        kl = await kl_of_fresh_samples(policy, learner, [PROMPT], samples=4, max_tokens=3, seed=0)
        assert kl == pytest.approx(0, abs=1e-6)
        assert await kl_of_fresh_samples(policy, learner_of(policy), [PROMPT], samples=4, max_tokens=3, seed=0) is None


async def test_the_estimate_is_the_exact_kl():
    with tiny_policy() as policy:
        learner = learner_of(policy, reference=True)
        untrained, _ = tiny_model("llama")
        moved = {
            name: value + 0.05 * torch.sin(torch.arange(value.numel())).view_as(value)
            for name, value in learner.weights.tensors().items()
        }
        learner.weights.load(moved)
        kl = await kl_of_fresh_samples(policy, learner, [PROMPT], samples=400, max_tokens=1, seed=0)
        now, before = (
            model(torch.tensor([PROMPT])).logits[0, -1].detach().log_softmax(-1) for model in (policy.model, untrained)
        )
    exact = (now.exp() * (now - before)).sum().item()
    assert exact > 0.02
    assert kl == pytest.approx(exact, rel=0.25)
