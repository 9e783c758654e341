"""Scores of given completions are those of one full forward, however they share prompts and beginnings."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from nat_finetune.errors import PolicyFailure
from nat_finetune.local.forward import forward_of
from nat_finetune.local.scoring import END, score
from tests.fixtures.models import ARCHITECTURES, tiny_model
from tests.local.harness import ask, engine_of, prompts_of, reference_model, true_logprobs, worst


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("pass_tokens", [48, 8192])
def test_scores_agree_with_a_full_forward(arch, pass_tokens):
    prompts = prompts_of(9, 1, 40, seed=6)
    completions = prompts_of(7, 1, 25, seed=7)
    rows = [(prompts[i % 9], completions[i % 7]) for i in range(20)] + [(prompts[0], completions[1][:3]), (prompts[0], ())]
    forward = forward_of(tiny_model(arch)[0])
    forward.pass_tokens = pass_tokens
    with torch.inference_mode():
        found = score(forward, rows, temperature=0.8, stop_ids=())
    model = reference_model(arch)
    for (prompt, completion), values in zip(rows, found, strict=True):
        assert len(values) == len(completion)
        if completion:
            assert worst(values, true_logprobs(model, prompt, completion, 0.8)) <= 1e-5


def test_end_is_any_of_the_stop_ids():
    forward = forward_of(tiny_model("qwen3")[0])
    with torch.inference_mode():
        [ended], *single = score(forward, [((5, 6), (END,)), ((5, 6), (7,)), ((5, 6), (9,))], temperature=1.0, stop_ids=(7, 9))
    assert math.isclose(math.exp(ended), sum(math.exp(value) for [value] in single), rel_tol=1e-5)


def test_probabilities_of_all_completions_sum_to_one():
    """Every way to sample at most two tokens, where token 2 ends the turn."""
    model, tokenizer = tiny_model("llama")
    tokens = range(len(tokenizer))
    rows = [((5, 6), (END,))]
    rows += [((5, 6), (first, END)) for first in tokens if first != 2]
    rows += [((5, 6), pair) for pair in itertools.product([t for t in tokens if t != 2], [t for t in tokens if t != 2])]
    with torch.inference_mode():
        values = score(forward_of(model), rows, temperature=1.3, stop_ids=(2,))
    assert math.isclose(sum(math.exp(sum(row)) for row in values), 1.0, rel_tol=1e-4)


async def test_temperature_zero_scores_what_greedy_sampling_gives():
    with engine_of() as engine:
        sampled = await ask(engine, (5, 6, 7), temperature=0.0, max_tokens=4)
        wrong = tuple(token + 1 for token in sampled.completion_ids)
        found = await engine.score([((5, 6, 7), sampled.completion_ids), ((5, 6, 7), wrong)], temperature=0.0)
    assert found[0] == [0.0] * 4
    assert found[1][0] == -math.inf


async def test_engine_scores_what_it_sampled_and_refuses_what_the_context_can_not_hold():
    with engine_of(max_context=24) as engine:
        sampled = await ask(engine, range(4, 20), max_tokens=9)
        [values] = await engine.score([(tuple(range(4, 20)), sampled.completion_ids)])
        assert worst(values, sampled.logprobs) <= 1e-5
        assert await engine.score([]) == []
        with pytest.raises(PolicyFailure, match="the context holds 24"):
            await engine.score([(tuple(range(4, 30)), (5,))])
