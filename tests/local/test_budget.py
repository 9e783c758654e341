"""The token budget: what probably fits, and halved when memory runs out, without losing the step."""

from __future__ import annotations

import logging

import pytest
import torch

from nat_finetune.errors import BackendError
from nat_finetune.local import budget as module
from nat_finetune.local.budget import CPU_TOKENS, TokenBudget, fitting_tokens
from nat_finetune.local.scores import TrainerScorer
from tests.fixtures.models import tiny_model
from tests.fixtures.training import learner_of, sampled_group, tiny_policy
from tests.local.test_optimise import gradients_of, group_objective, run


async def groups_of(policy):
    return [await sampled_group(policy, [0.0, 1.0, 0.5, 1.0], example=example, max_tokens=9) for example in range(1, 6)]


@pytest.mark.parametrize("kind", ["allocator", "cuda", "python"])
async def test_a_step_is_done_again_with_half_the_tokens(kind, monkeypatch, caplog):
    monkeypatch.setattr(module, "CPU_TOKENS", 128)
    errors = {
        "allocator": RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you tried"),
        "cuda": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        "python": MemoryError(),
    }
    with tiny_policy() as policy:
        groups, learner, sizes = await groups_of(policy), learner_of(policy), []
        plain, expected = gradients_of(learner, group_objective(groups), monkeypatch)
        assert learner.budget.retries == 0
        scores = TrainerScorer.scores

        def short_of_memory(self, batch):
            sizes.append(batch.input_ids_L_T.numel())
            found = scores(self, batch)
            if len(sizes) > 1 and sizes[-1] > 64:  # not the first: the failed attempt leaves gradients behind

                def fail(grad):
                    raise errors[kind]

                found.logprobs_B_T.register_hook(fail)
            return found

        monkeypatch.setattr(TrainerScorer, "scores", short_of_memory)
        with caplog.at_level(logging.WARNING):
            again, measured = gradients_of(learner, group_objective(groups), monkeypatch)
        assert sizes[1] > 64 >= max(sizes[2:])
        assert "again with 64 tokens at once, not 128" in caplog.text
        assert measured["loss"] == pytest.approx(expected["loss"], rel=1e-4, abs=1e-6)
        for name, gradient in plain.items():
            torch.testing.assert_close(again[name], gradient, rtol=1e-4, atol=1e-6)
        metrics = run(learner, group_objective(groups, bound=100)).metrics  # the next update begins where this one ended
        assert (metrics["microbatch_tokens"], metrics["out_of_memory_retries"]) == (64, 1)


def test_what_the_config_demands_is_not_halved_and_the_smallest_is_the_end():
    model, _ = tiny_model("llama")
    undone = []

    def fails(tokens):
        tried.append(tokens)
        raise MemoryError

    for setting, expected in ((512, [512]), ("auto", [2048, 1024, 512, 256, 128, 64])):
        tried: list[int] = []
        with pytest.raises(BackendError, match=rf"lower max_tokens_per_microbatch \(now {expected[-1]}\)"):
            TokenBudget().attempt(fails, lambda: undone.append(1), setting, model, checkpointing=False)
        assert tried == expected
    assert len(undone) == 7


def test_other_errors_pass():
    model, _ = tiny_model("llama")

    def fails(tokens):
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes do not match"):
        TokenBudget().attempt(fails, lambda: None, "auto", model, checkpointing=False)


def test_the_first_budget_is_what_probably_fits(monkeypatch):
    model, _ = tiny_model("llama")
    config = model.config
    for_each = config.num_hidden_layers * 36 * config.hidden_size * 4
    for free, expected in ((None, CPU_TOKENS), (1 << 40, CPU_TOKENS), (for_each * 2048, 1024), (for_each * 500, 128), (0, 64)):
        monkeypatch.setattr(module, "free_ram", lambda free=free: free)
        assert fitting_tokens(model, checkpointing=False) == expected
    monkeypatch.setattr(module, "free_ram", lambda: for_each * 800)
    assert fitting_tokens(model, checkpointing=False) == 256
    assert fitting_tokens(model.bfloat16(), checkpointing=False) == 512
    deep, _ = tiny_model("llama")
    deep.config.num_hidden_layers = 72
    monkeypatch.setattr(module, "free_ram", lambda: 72 * 36 * config.hidden_size * 4 * 100)
    assert fitting_tokens(deep, checkpointing=False) == 64
    assert fitting_tokens(deep, checkpointing=True) == 1024
