from __future__ import annotations

import functools
import math
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch

from nat_finetune.algorithms.policy_gradient import LossOutput
from nat_finetune.algorithms.presets import PRESETS
from nat_finetune.data.batches import Rows
from nat_finetune.errors import AgreementError, BackendError
from nat_finetune.local.group_objective import GroupObjective
from nat_finetune.local.group_rows import encode_groups
from nat_finetune.local.optimise import Cancelled, mean_metrics, optimise
from nat_finetune.local.pair_objective import PairObjective
from nat_finetune.local.pair_rows import encode_pairs
from nat_finetune.local.scores import TEMPERATURE, TrainerScorer, bare_model
from nat_finetune.local.settings import Importance, LoopSettings, LoraSettings, PolicyGradientSettings, PreferenceSettings
from nat_finetune.local.trained_steps import Outputs
from nat_finetune.local.weights import TrainedWeights
from nat_finetune.types import Group, RewardTerm
from tests.fixtures.models import ARCHITECTURES, tiny_model
from tests.fixtures.training import (
    REWARD,
    learner_of,
    pair,
    plain_logprobs,
    sampled_group,
    tiny_policy,
    trajectory,
)

GRPO = PRESETS["grpo"]


def run(learner, objective, **settings):
    options = {"progress": lambda share: None, "cancelled": lambda: False, "seed": 0}
    options |= {name: settings.pop(name) for name in list(settings) if name in options}
    return optimise(learner, objective, LoopSettings(**settings), **options)


def group_objective(groups, preset=GRPO, *, importance=None, bound=1e-3, length_limit=None):
    options = {"length_limit": length_limit, "max_length": None, "policy_version": 0}
    rows = encode_groups(groups, preset, rewards=(RewardTerm(REWARD),), **options)
    return GroupObjective(rows, PolicyGradientSettings(preset, length_limit, importance), agreement_bound=bound)


def weights_of(policy):
    return {name: value.detach().clone() for name, value in policy.model.named_parameters()}


def gradients_of(learner, objective, monkeypatch, **settings):
    """The gradient of the first optimiser step, before clipping."""
    found = {}

    def keep():
        found.update({name: master.grad.clone() for name, master in learner.weights.masters.items()})
        learner.weights.clear_gradients()
        return {"grad_norm": 0.0, "learning_rate": 0.0}

    monkeypatch.setattr(learner.optimiser, "step", keep)
    measured = run(learner, objective, **settings)
    return found, measured.curve[0]


async def uneven_groups(policy):
    """Rollouts of many lengths."""
    return [
        await sampled_group(policy, [0.0, 1.0, 0.25, 1.0], example=example, max_tokens=length)
        for example, length in ((1, 3), (2, 9), (3, 1), (4, 5))
    ]


# --------------------------------------------------------------------------------------------- accumulation and padding


@pytest.mark.parametrize("preset", ["grpo", "gspo", "dr_grpo", "cispo", "rloo"])
async def test_many_small_micro_batches_give_the_gradient_of_one_large(preset, monkeypatch):
    with tiny_policy() as policy:
        groups = await uneven_groups(policy)
        learner = learner_of(policy)
        choices = PRESETS[preset]
        found = []
        for budget in (1, 60, 100_000):
            objective = group_objective(groups, choices, length_limit=9 if choices.reduction == "constant_length" else None)
            found.append(gradients_of(learner, objective, monkeypatch, max_tokens_per_microbatch=budget))
    (one, first), (few, second), (all_at_once, third) = found
    for name, gradient in all_at_once.items():
        torch.testing.assert_close(one[name], gradient, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(few[name], gradient, rtol=1e-4, atol=1e-6)
    for metric, value in third.items():
        assert first[metric] == pytest.approx(value, rel=1e-4, abs=1e-6)
        assert second[metric] == pytest.approx(value, rel=1e-4, abs=1e-6)
    assert any(gradient.abs().max() > 1e-3 for gradient in one.values())


async def test_preference_gradients_do_not_depend_on_micro_batches(monkeypatch):
    pairs = [
        pair("a", "bc dog"),
        pair("the quick brown fox", "o"),
        pair("a", "lazy"),
        pair("win", "lose", text="move 0 1 2 3 4"),
    ]
    with tiny_policy() as policy:
        learner = learner_of(policy, reference=True)
        found = [
            gradients_of(
                learner,
                PairObjective(encode_pairs(pairs, policy.format, max_length=None), PreferenceSettings(sft_loss_weight=0.3)),
                monkeypatch,
                max_tokens_per_microbatch=budget,
            )[0]
            for budget in (1, 100_000)
        ]
    for name, gradient in found[1].items():
        torch.testing.assert_close(found[0][name], gradient, rtol=1e-4, atol=1e-6)


def test_scores_do_not_depend_on_what_shares_the_batch():
    model, _ = tiny_model("mistral")
    rows = Rows.of([[5, 6, 7], [5, 6, 8, 9] * 6, [5, 6, 7, 9, 4]], [[0, 1, 1], [0, 0, 0, 1] * 6, [0, 0, 0, 0, 1]])
    rows.columns[TEMPERATURE] = np.full(len(rows.token_ids_N), 0.7, np.float32)
    scorer = TrainerScorer(model)
    scorer.score_into(rows, "together", rows.plans([(0, 1, 2)], max_tokens=1000))
    scorer.score_into(rows, "apart", rows.plans([(0,), (1,), (2,)], max_tokens=1))
    np.testing.assert_allclose(rows.columns["together"], rows.columns["apart"], atol=2e-6)
    plain = plain_logprobs(model, [5, 6, 7], 1, temperature=0.7)
    np.testing.assert_allclose(rows.columns["together"][1:3], plain.detach(), atol=2e-6)


def test_each_turn_is_scored_at_its_own_temperature():
    model, _ = tiny_model("llama")
    rows = Rows.of([[5, 6, 7, 8]], [[0, 1, 0, 1]])
    rows.columns[TEMPERATURE] = np.array([0, 0.5, 0, 2.0], np.float32)
    TrainerScorer(model).score_into(rows, "scores", rows.plans([(0,)], max_tokens=100))
    ids = [5, 6, 7, 8]
    expected = [
        plain_logprobs(model, ids, 1, temperature=0.5)[0].item(),
        plain_logprobs(model, ids, 3, temperature=2.0)[0].item(),
    ]
    assert rows.columns["scores"][[1, 3]].tolist() == pytest.approx(expected, abs=2e-6)


# ------------------------------------------------------------------------------------------------------ what is trained


def test_tokens_outside_the_mask_get_no_gradient(monkeypatch):
    with tiny_policy(tied=False) as policy:
        ids = [5, 6, 7, 8]
        old = plain_logprobs(policy.model, ids, 3).tolist()
        groups = [Group(1, (trajectory(ids[:3], ids[3:], old, 1.0), trajectory(ids[:3], ids[3:], old, 0.0)))]
        objective = group_objective(groups)
        objective.rows.columns["advantages"][:] = 1.0  # also at prompt tokens, where nothing may look
        gradients, _ = gradients_of(learner_of(policy), objective, monkeypatch)
        [weight] = [value for name, value in policy.model.named_parameters() if name == "lm_head.weight"]
        expected = torch.autograd.grad(-plain_logprobs(policy.model, ids, 3).sum(), weight)[0]
    torch.testing.assert_close(gradients["lm_head.weight"], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("pad_is_eos", [False, True])
def test_the_pad_row_trains_as_an_input_too(pad_is_eos):
    model, tokenizer = tiny_model("llama", pad_is_eos=pad_is_eos)
    pad = tokenizer.pad_token_id
    assert (pad == tokenizer.eos_token_id) == pad_is_eos
    ids = [5, pad, 7, 8]
    plain_logprobs(model, ids, 1).sum().backward()
    assert model.get_input_embeddings().weight.grad[pad].norm() == 0  # what transformers does by itself
    model.zero_grad()
    TrainedWeights(model)
    plain_logprobs(model, ids, 1).sum().backward()
    row = model.get_input_embeddings().weight.grad[pad].clone()
    model.zero_grad()
    embedded = model.get_input_embeddings()(torch.tensor([ids])).detach().requires_grad_()
    logits = model(inputs_embeds=embedded).logits[0].log_softmax(-1)
    torch.stack([logits[t - 1, ids[t]] for t in range(1, 4)]).sum().backward()
    torch.testing.assert_close(row, embedded.grad[0, 1])
    assert row.norm() > 1e-3


async def test_the_end_of_turn_trains_when_it_is_the_pad_token():
    with tiny_policy(pad_is_eos=True, seed=1) as policy:
        eos, prompt = policy.tokenizer.eos_token_id, (3, 5, 6)
        completions = [(7, eos), (8, eos), (9, 9), (7, 10)]
        members = [
            trajectory(prompt, c, plain_logprobs(policy.model, (*prompt, *c), 3).tolist(), float(c[1] == eos), rollout=str(i))
            for i, c in enumerate(completions)
        ]
        before = [plain_logprobs(policy.model, (*prompt, *c), 4).item() for c in completions]
        run(learner_of(policy), group_objective([Group(1, tuple(members))]), epochs=4)
        after = [plain_logprobs(policy.model, (*prompt, *c), 4).item() for c in completions]
    assert after[0] > before[0] + 0.1
    assert after[1] > before[1] + 0.1


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=4, alpha=16)])
async def test_rewarded_tokens_become_more_probable(lora):
    with tiny_policy() as policy:
        group = await sampled_group(policy, [1.0, 0.0, 1.0, 0.0, 0.0, 1.0])
        learner = learner_of(policy, rate=3e-3, lora=lora)
        before = [_whole(policy, t) for t in group.trajectories]
        run(learner, group_objective([group]), epochs=3)
        after = [_whole(policy, t) for t in group.trajectories]
    moved = [b - a for a, b in zip(before, after, strict=True)]
    assert min(moved[0], moved[2], moved[5]) > 0.1
    assert max(moved[1], moved[3], moved[4]) < -0.1


async def test_equal_rewards_change_nothing():
    with tiny_policy() as policy:
        group = await sampled_group(policy, [0.7] * 6)
        learner, before = learner_of(policy), weights_of(policy)
        done = run(learner, group_objective([group]), epochs=2)
        after = weights_of(policy)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert done.curve[0]["grad_norm"] == 0
    assert done.curve[0]["advantage_abs_mean"] == 0


def _whole(policy, member):
    [segment] = member.segments
    with torch.no_grad():
        return plain_logprobs(policy.model, segment.token_ids, segment.turns[0].start).sum().item()


# ------------------------------------------------------------------------------------------------------ old and sampler


async def test_the_first_ratio_is_one_and_the_sampler_is_measured():
    with tiny_policy() as policy:
        groups = await uneven_groups(policy)
        learner = learner_of(policy)
        single = run(learner, group_objective(groups))
        assert single.curve[0]["ratio_max"] == pytest.approx(1, abs=1e-4)
        assert single.curve[0]["sampler_trainer_max_abs"] < 1e-5
        assert single.curve[0]["clip_fraction"] == 0
    with tiny_policy() as policy:
        several = run(learner_of(policy), group_objective(groups), epochs=2)
    assert several.curve[0]["ratio_max"] == pytest.approx(1, abs=1e-6)
    assert several.curve[1]["ratio_max"] > 1.001
    assert 0 < several.metrics["sampler_trainer_max_abs"] < 1e-5


@pytest.mark.parametrize("epochs", [1, 2])
async def test_a_sampler_that_is_not_the_trainer_stops_before_anything_changes(epochs):
    with tiny_policy() as policy:
        group = await sampled_group(policy, [0.0, 1.0])
        learner, before = learner_of(policy), weights_of(policy)
        objective = group_objective([group])
        objective.rows.columns["sampler_logprobs"][objective.rows.loss_mask_N] += 0.01
        with pytest.raises(AgreementError, match=r"up to 0\.01 nats .* more than agreement\.bound = 0\.001"):
            run(learner, objective, epochs=epochs)
        after = weights_of(policy)
    assert all(torch.equal(before[name], after[name]) for name in before)


async def test_stale_samples_are_not_held_against_the_trainer_and_can_be_corrected(monkeypatch):
    with tiny_policy() as policy:
        group = await sampled_group(policy, [0.0, 1.0])
        policy.version = 1
        stale = [group]
        plain, corrected = group_objective(stale), group_objective(stale, importance=Importance("truncate_tokens", 0.0, 5.0))
        for objective in (plain, corrected):
            objective._encoded.current[:] = False
            objective.rows.columns["sampler_logprobs"][objective.rows.loss_mask_N] -= math.log(2)
        learner = learner_of(policy)
        _, first = gradients_of(learner, plain, monkeypatch)
        _, second = gradients_of(learner, corrected, monkeypatch)
    assert first["ratio_max"] == pytest.approx(2, rel=1e-3)
    assert second["ratio_max"] == 1
    assert second["correction_mean"] == pytest.approx(2, rel=1e-3)


async def test_kl_holds_the_policy_near_the_reference():
    distance = {}
    for coefficient in (0.0, 1.0):
        with tiny_policy() as policy:
            group = await sampled_group(policy, [1.0, 0.0, 1.0, 0.0])
            preset = replace(GRPO, kl_coefficient=coefficient)
            learner = learner_of(policy, reference=True)
            curve = run(learner, group_objective([group], preset), epochs=8).curve
            distance[coefficient] = curve[-1]["approx_kl"]
            if coefficient:
                assert curve[0]["kl_ref"] == pytest.approx(0, abs=1e-7)
                assert curve[-1]["kl_ref"] > 1e-4
    assert distance[1.0] < 0.7 * distance[0.0]


# -------------------------------------------------------------------------------------------------------------- the loop


async def test_items_are_shuffled_by_seed_and_all_are_used_every_epoch():
    class Recorder:
        def __init__(self, rows):
            self.rows, self.items, self.steps = rows, [[(row,)] for row in range(len(rows))], []

        def begin(self, learner, plans, *, single_step):
            return {}

        def check(self, metrics):
            return {}

        def step(self, items):
            self.steps.append(list(items))
            return lambda batch, scores, units: LossOutput(-scores.logprobs_B_T.sum(), {}, {})

    def orders(seed):
        with tiny_policy() as policy:
            rows = Rows.of([[5, 6 + i] for i in range(7)], [[0, 1]] * 7)
            rows.columns[TEMPERATURE] = np.ones(14, np.float32)
            recorder = Recorder(rows)
            run(learner_of(policy), recorder, epochs=2, batch_size=3, seed=seed)
            return recorder.steps

    first = orders(1)
    assert [len(step) for step in first] == [3, 3, 1, 3, 3, 1]
    assert sorted(chain(*first[:3])) == sorted(chain(*first[3:])) == list(range(7))
    assert first[:3] != first[3:]
    assert first == orders(1) != orders(2)


async def test_progress_reaches_one_and_cancelling_stops_between_steps():
    with tiny_policy() as policy:
        groups = await uneven_groups(policy)
        learner, shares = learner_of(policy), []
        run(learner, group_objective(groups), epochs=2, max_tokens_per_microbatch=50, progress=shares.append)
        assert shares == sorted(shares)
        assert shares[-1] == 1
        asked = iter([False, True])
        with pytest.raises(Cancelled, match="after 1 of 2 optimiser steps"):
            run(learner, group_objective(groups, bound=100), epochs=2, cancelled=lambda: next(asked))
        assert learner.optimiser.steps == 3


async def test_checkpointed_activations_give_the_same_gradient(monkeypatch):
    for lora in (None, LoraSettings(rank=4)):
        with tiny_policy() as policy:
            groups = await uneven_groups(policy)
            learner = learner_of(policy, lora=lora)
            plain, _ = gradients_of(learner, group_objective(groups), monkeypatch)
            forwards = []
            with monkeypatch.context() as patch:
                counted = functools.partial(_counted, forwards, Outputs.forward)
                patch.setattr(Outputs, "forward", counted)
                recomputed, _ = gradients_of(learner, group_objective(groups), monkeypatch, activation_checkpointing=True)
            layers = len(bare_model(policy.model).get_decoder().layers)
            assert len(forwards) == 2 * layers  # once forwards, once again on the way back
            assert not policy.model.training
            assert not any(module.training for module in policy.model.modules())
        for name, gradient in plain.items():
            torch.testing.assert_close(recomputed[name], gradient)


def _counted(calls, function, *args):
    calls.append(function)
    return function(*args)


async def test_out_of_memory_says_what_to_do(monkeypatch):
    with tiny_policy() as policy:
        group = await sampled_group(policy, [0.0, 1.0])
        learner = learner_of(policy)

        def fails(batch):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

        monkeypatch.setattr(TrainerScorer, "scores", lambda self, batch: fails(batch))
        with pytest.raises(BackendError, match=r"lower max_tokens_per_microbatch \(now 512\), set activation_checkpointing"):
            run(learner, group_objective([group]), max_tokens_per_microbatch=512)


async def test_a_gradient_that_is_not_finite_changes_nothing():
    with tiny_policy() as policy:
        group = await sampled_group(policy, [0.0, 1.0])
        objective = group_objective([group])
        objective.rows.columns["advantages"][objective.rows.loss_mask_N] = math.inf
        learner, before = learner_of(policy), weights_of(policy)
        with pytest.raises(BackendError, match="norm is nan at optimiser step 0"):
            run(learner, objective)
        after = weights_of(policy)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_metrics_of_an_update():
    curve = [{"loss": 1.0, "ratio_max": 2.0, "tokens": 5.0}, {"loss": 3.0, "ratio_max": 1.5, "tokens": 6.0}]
    assert mean_metrics(curve) == {"loss": 2.0, "ratio_max": 2.0, "tokens": 11.0}


# ------------------------------------------------------------------------------------------------------- every architecture


@pytest.mark.parametrize("arch", ARCHITECTURES)
async def test_every_architecture_learns_by_grpo_and_agrees_with_its_engine(arch):
    with tiny_policy(arch) as policy:
        group = await sampled_group(policy, [1.0, 0.0, 1.0, 0.0], max_tokens=5)
        before = [_whole(policy, t) for t in group.trajectories]
        done = run(learner_of(policy, lora=LoraSettings(rank=4)), group_objective([group]), epochs=2)
        after = [_whole(policy, t) for t in group.trajectories]
    assert done.metrics["sampler_trainer_max_abs"] < 1e-5
    assert after[0] - before[0] > after[1] - before[1]


async def test_reading_shared_beginnings_once_changes_no_gradient_of_a_group(monkeypatch):
    """Eight answers to one prompt, read as a tree and one by one."""
    with tiny_policy() as policy:
        groups = await uneven_groups(policy)
        learner = learner_of(policy)
        shared, _ = gradients_of(learner, group_objective(groups), monkeypatch)
        assert learner.scorer.tree_tokens > 0
        learner.scorer.tree_tokens = 0
        apart, _ = gradients_of(learner, group_objective(groups), monkeypatch)
    assert max((shared[name] - apart[name]).abs().max().item() for name in shared) < 1e-5
    assert max(gradient.abs().max().item() for gradient in apart.values()) > 1e-2
