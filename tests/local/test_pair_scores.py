"""Margins of held-out pairs against plain transformers: whole logits of one unpadded sequence at a time."""

from __future__ import annotations

import asyncio

import pytest
import torch

from nat_finetune.local.pair_rows import pair_ids
from nat_finetune.local.pair_scores import PairScoring
from nat_finetune.local.settings import LoopSettings, LoraSettings, OptimiserSettings, PreferenceSettings, UpdateSettings
from tests.fixtures.models import ARCHITECTURES, tiny_model
from tests.fixtures.training import learner_of, pair, plain_logprobs, tiny_policy

PAIRS = [
    pair("the quick brown fox jumps", "o"),
    pair("lazy", "the quick brown fox"),
    pair("win", "lose", text="move 0 1 2 3"),
    pair("lose", "win", text="move 0 1 2 3"),
    pair("free square", "draw", text="the quick brown fox jumps over the lazy dog"),
]


def settings(loss="sigmoid", **changes):
    return UpdateSettings(PreferenceSettings(loss=loss), OptimiserSettings(1e-3), LoopSettings(), **changes)


def scored(policy, pairs, *, lora=None, move=None, reference=True, **changes):
    """Scores before and, where the weights are moved, after that."""
    learner = learner_of(policy, lora=lora, reference=reference)
    scoring = PairScoring(policy, learner, settings(**changes))
    before = asyncio.run(scoring.score(pairs))
    if move is None:
        return before
    with torch.no_grad():
        for parameter in learner.weights.by_name.values():
            parameter.mul_(move)
    return before, asyncio.run(scoring.score(pairs))


@torch.no_grad()
def plain_totals(model, policy, one, *, average=False):
    sides = pair_ids(one, policy.format)
    values = [plain_logprobs(model, (*prompt, *completion), len(prompt)) for prompt, completion in sides]
    return [float(v.mean() if average else v.sum()) for v in values]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_margins_are_those_of_plain_transformers(arch):
    with tiny_policy(arch) as policy:
        found = scored(policy, PAIRS)
        plain, _ = tiny_model(arch)
        want = [plain_totals(plain, policy, one) for one in PAIRS]
    assert [one.margin for one in found] == pytest.approx([c - r for c, r in want], abs=1e-4)
    assert found[2].margin == -found[3].margin  # the same two completions, judged the other way


def test_the_end_of_the_turn_counts():
    with tiny_policy() as policy:
        (_, chosen), _ = pair_ids(PAIRS[0], policy.format)
        assert chosen[-1] == policy.tokenizer.eos_token_id
        plain, _ = tiny_model("llama")
        sides = [plain_logprobs(plain, (*p, *c), len(p)).detach() for p, c in pair_ids(PAIRS[0], policy.format)]
        (found,) = scored(policy, PAIRS[:1])
    without = float(sides[0][:-1].sum() - sides[1][:-1].sum())
    assert abs(found.margin - without) > 1e-3


def test_a_pair_scores_the_same_in_any_company():
    with tiny_policy() as policy:
        together = scored(policy, PAIRS * 3)
        alone = [scored(policy, [one])[0] for one in PAIRS]
    assert [one.margin for one in together] == pytest.approx([one.margin for one in alone] * 3, abs=1e-5)


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=4)])
def test_before_any_update_no_side_gained(lora):
    with tiny_policy() as policy:
        assert [one.reward_margin for one in scored(policy, PAIRS, lora=lora)] == [0.0] * len(PAIRS)


@pytest.mark.parametrize("loss", ["sigmoid", "sigmoid_norm"])
def test_rewards_are_gains_over_the_reference(loss):
    with tiny_policy() as policy:
        _, after = scored(policy, PAIRS, move=0.7, loss=loss)
        moved, untrained = policy.model, tiny_model("llama")[0]
        moved.set_attn_implementation("eager")
        average = loss == "sigmoid_norm"
        want = []
        for one in PAIRS:
            now, then = (plain_totals(model, policy, one, average=average) for model in (moved, untrained))
            want.append((now[0] - then[0]) - (now[1] - then[1]))
    assert max(map(abs, want)) > 0.1
    assert [one.reward_margin for one in after] == pytest.approx(want, abs=1e-4)


def test_a_reference_that_is_held_anew_is_scored_anew():
    with tiny_policy() as policy:
        learner = learner_of(policy, reference=True)
        scoring = PairScoring(policy, learner, settings())
        asyncio.run(scoring.score(PAIRS))
        with torch.no_grad():
            for parameter in learner.weights.by_name.values():
                parameter.mul_(0.7)
        learner.reference.hold(1)
        assert [one.reward_margin for one in asyncio.run(scoring.score(PAIRS))] == [0.0] * len(PAIRS)


def test_without_a_reference_rewards_are_unknown():
    with tiny_policy() as policy:
        assert [one.reward_margin for one in scored(policy, PAIRS, reference=False)] == [None] * len(PAIRS)


def test_what_an_update_would_drop_is_unknown_and_what_it_shortens_is_shortened():
    with tiny_policy() as policy:
        lengths = [max(len(p) + len(c) for p, c in pair_ids(one, policy.format)) for one in PAIRS]
        limit = max(lengths) - 1
        dropped = scored(policy, PAIRS, max_length=limit)
        cut = scored(policy, PAIRS, max_length=limit, on_too_long="truncate_prompt")
    assert [one is None for one in dropped] == [length > limit for length in lengths]
    assert all(one is not None for one in cut)
