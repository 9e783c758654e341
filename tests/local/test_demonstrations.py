"""Supervised updates: the loss and its gradient against the textbook, one sequence by itself after the other."""

import pytest
import torch

from nat_finetune.local.demonstrations import DemonstrationObjective
from nat_finetune.local.optimise import optimise
from nat_finetune.local.pair_rows import completion_ids
from nat_finetune.local.settings import LoopSettings, SupervisedSettings
from nat_finetune.types import Demonstration, DropReason, Provenance
from tests.fixtures.models import tiny_model
from tests.fixtures.training import learner_of, plain_logprobs, tiny_policy


def shown(text, completion, weight=1.0, **ids):
    return Demonstration(({"role": "user", "content": text},), completion, Provenance(example_id=1), weight, **ids)


SHOWN = [shown("move 5", "the quick brown fox", 2.0), shown("move 0 1 2", "win"), shown("move 5", "o", 0.5)]


def objective_of(policy, items=SHOWN, **settings):
    limits = {name: settings.pop(name) for name in ("max_length", "truncate_prompts") if name in settings}
    return DemonstrationObjective(items, policy.format, SupervisedSettings(**settings), **{"max_length": None, **limits})


@pytest.mark.parametrize("reduction", ["token_mean", "sequence_mean"])
@pytest.mark.parametrize("tokens", [20, 1000])
def test_loss_and_gradient_are_the_textbooks(monkeypatch, reduction, tokens):
    with tiny_policy() as policy:
        learner, kept = learner_of(policy), {}
        monkeypatch.setattr(
            learner.optimiser,
            "step",
            lambda: kept.update({n: m.grad.clone() for n, m in learner.weights.masters.items()}) or {},
        )
        settings = LoopSettings(max_tokens_per_microbatch=tokens)
        objective = objective_of(policy, reduction=reduction)
        (step,) = optimise(learner, objective, settings, seed=0, progress=lambda s: None, cancelled=lambda: False).curve
        sides = [completion_ids(d.context, d.completion, policy.format, where="") for d in SHOWN]
        assert all(completion[-1] == policy.tokenizer.eos_token_id for _, completion in sides)
    model, _ = tiny_model("llama")
    model.get_input_embeddings().padding_idx = None
    nll = [-plain_logprobs(model, (*prompt, *completion), len(prompt)) for prompt, completion in sides]
    if reduction == "token_mean":
        weights = sum(d.weight * len(values) for d, values in zip(SHOWN, nll, strict=True))
        loss = sum(d.weight * values.sum() for d, values in zip(SHOWN, nll, strict=True)) / weights
    else:
        loss = sum(d.weight * values.mean() for d, values in zip(SHOWN, nll, strict=True)) / sum(d.weight for d in SHOWN)
    loss.backward()
    assert step["loss"] == pytest.approx(loss.item(), abs=1e-5)
    assert step["nll"] == pytest.approx(torch.cat(nll).mean().item(), abs=1e-5)
    assert step["tokens"] == sum(map(len, nll))
    for name, value in model.named_parameters():
        torch.testing.assert_close(kept[name], value.grad, atol=1e-5, rtol=1e-4, msg=name)


def test_sampled_ids_are_trained_as_they_are():
    given = shown("move 5", "anything", prompt_ids=(5, 6, 7), completion_ids=(8, 9))
    with tiny_policy() as policy:
        rows = objective_of(policy, [given]).rows
    assert rows.token_ids_N.tolist() == [5, 6, 7, 8, 9]
    assert rows.loss_mask_N.tolist() == [False, False, False, True, True]


def test_too_long_is_dropped_or_loses_its_prompts_beginning():
    given = shown("move 5", "anything", prompt_ids=(5, 6, 7), completion_ids=(8, 9))
    with tiny_policy() as policy:
        whole = objective_of(policy, [given, *SHOWN], max_length=4)
        cut = objective_of(policy, [given], max_length=4, truncate_prompts=True)
        never = objective_of(policy, [given], max_length=2, truncate_prompts=True)
    assert [drop.reason for drop in whole.dropped] == [DropReason.TOO_LONG] * 4
    assert whole.dropped[0].detail == "5 tokens, max_length is 4"
    assert cut.rows.token_ids_N.tolist() == [6, 7, 8, 9]
    assert [drop.reason for drop in never.dropped] == [DropReason.TOO_LONG]
