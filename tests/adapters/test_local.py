from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError

from nat_finetune.adapters.local import LocalTrainerAdapterConfig, local_trainer_adapter
from nat_finetune.errors import AgreementError, BackendError, ConfigError, DataError, NoTrainableSignal, StageError
from nat_finetune.interfaces import TrainerAdapter
from nat_finetune.local.jobs import LocalTrainerAdapter
from nat_finetune.local.scores import TrainerScorer
from nat_finetune.types import Collection, Group, JobState, PolicyRef, RewardTerm, SamplingParams, Target
from tests.fixtures.models import ARCHITECTURES
from tests.fixtures.training import MESSAGES, REWARD, collection, pair, sampled_group, tiny_policy, trajectory

PAIRS = (pair("the quick brown fox", "o"), pair("win", "lose", text="move 0 1 2 3"))


def config(algorithm="grpo", **settings):
    named = {"name": algorithm} if isinstance(algorithm, str) else algorithm
    return LocalTrainerAdapterConfig(**{"algorithm": named, "learning_rate": 3e-3, **settings})


def adapter_of(policy, algorithm="grpo", *, rewards=(REWARD,), **settings) -> LocalTrainerAdapter:
    target = Target(("<workflow>",), policy.name, tuple(RewardTerm(name) for name in rewards))
    return LocalTrainerAdapter(config(algorithm, **settings).settings(), policy, target=target, name="gpu", seed=7)


async def update(adapter: TrainerAdapter, items: Collection):
    ref = await adapter.submit(await adapter.prepare(items, None))
    await adapter.wait(ref)
    return await adapter.result(ref)


# -------------------------------------------------------------------------------------------------------------- an update


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("lora", [None, {"rank": 4}])
async def test_every_architecture_is_sampled_trained_by_both_methods_and_agrees(arch, lora):
    with tiny_policy(arch) as policy:
        group = await sampled_group(policy, [1.0, 0.0, 1.0, 0.0])
        for algorithm, items in (("grpo", (group,)), ("dpo", PAIRS)):
            version = policy.version
            result = await update(adapter_of(policy, algorithm, lora=lora if version == 0 else None), collection(*items))
            assert result.policy == policy.ref()
            assert result.policy.version == version + 1
            assert result.metrics["agreement_max_abs"] < 1e-5
            assert result.metrics["canary_moved"] > 1e-3
            reply = await policy.chat(MESSAGES, SamplingParams(max_tokens=3, seed=1))
            assert reply.policy == result.policy


async def test_what_an_update_reports():
    with tiny_policy() as policy:
        group = await sampled_group(policy, [1.0, 0.0, 0.5, 0.5])
        adapter = adapter_of(policy, epochs=2, batch_size=3)
        spec = await adapter.prepare(collection(group), None)
        assert (spec.items, spec.adapter, spec.step, spec.run_id) == (4, "gpu", 0, "run")
        ref = await adapter.submit(spec)
        status = await adapter.wait(ref)
        result, logs = await adapter.result(ref), await adapter.logs(ref)
    assert status.state is JobState.COMPLETED
    assert status.progress == 1
    assert result.optimiser_steps == len(result.curve) == 4
    tokens = [member.trainable_tokens for member in group.trajectories]
    assert result.tokens_trained == tokens[0] + tokens[1]
    assert result.tokens_masked == tokens[2] + tokens[3]
    assert result.metrics["tokens"] == 2 * sum(tokens)
    expected = {"loss", "grad_norm", "learning_rate", "clip_fraction", "ratio_mean", "ratio_max", "approx_kl", "entropy"}
    expected |= {"advantage_abs_mean", "tokens"}
    once = {"sampler_trainer_max_abs", "agreement_max_abs", "agreement_mean_abs", "canary_moved", "canary_from_base"}
    once |= {"kl_previous", "zero_advantage_share", "response_tokens_mean", "ratio_start_off_max_abs"}
    assert expected | once <= result.metrics.keys()
    assert expected <= result.curve[0].keys()
    assert not once & result.curve[0].keys()
    assert result.metrics["zero_advantage_share"] == (tokens[2] + tokens[3]) / sum(tokens)
    assert result.metrics["response_tokens_mean"] == sum(tokens) / 4
    assert 0 <= result.metrics["ratio_start_off_max_abs"] < 1e-5
    assert result.metrics["kl_previous"] > 0
    assert len(logs) == 5
    assert logs[0].startswith("optimiser step 0: loss ")


async def test_several_rewards_are_trained_by_their_weights_and_say_their_shares():
    with tiny_policy() as policy:
        group = await sampled_group(policy, [1.0, 0.0, 1.0, 0.0])
        members = [
            replace(t, rewards={REWARD: t.rewards[REWARD], "format": float(i < 2)}) for i, t in enumerate(group.trajectories)
        ]
        both = collection(replace(group, trajectories=tuple(members)))
        apart = await update(adapter_of(policy, "gdpo", rewards=(REWARD, "format")), both)
        alone = await update(adapter_of(policy, "gdpo"), collection(group))
    assert apart.reward_shares == pytest.approx({REWARD: 0.5, "format": 0.5})
    assert apart.tokens_trained == sum(members[i].trainable_tokens for i in (0, 3))  # (1, 0) and (0, 1) weigh the same
    assert alone.reward_shares == {}


async def test_preferences_report_their_own_figures():
    with tiny_policy() as policy:
        result = await update(adapter_of(policy, "dpo", epochs=3), collection(*PAIRS))
    assert {
        "chosen_reward",
        "rejected_reward",
        "margin",
        "accuracy",
        "chosen_logprob",
        "rejected_logprob",
    } <= result.metrics.keys()
    assert result.curve[0]["loss"] == pytest.approx(0.6931, abs=1e-4)
    assert result.curve[-1]["margin"] > result.curve[0]["margin"]


async def test_too_long_is_an_error_where_the_config_says_so():
    with tiny_policy() as policy:
        with pytest.raises(DataError, match=r"2 items are too long, such as a pair of example 1 with \d+ tokens"):
            await adapter_of(policy, "dpo", max_length=8, on_too_long="fail").prepare(collection(*PAIRS), None)
        spec = await adapter_of(policy, "dpo", max_length=30, on_too_long="truncate_prompt").prepare(collection(*PAIRS), None)
    assert spec.items == 2
    with pytest.raises(ValidationError, match="truncate_prompt is not for groups"):
        config("grpo", on_too_long="truncate_prompt")


async def test_the_same_key_starts_once_and_other_content_has_another_key():
    with tiny_policy() as policy:
        group = await sampled_group(policy, [1.0, 0.0])
        other = replace(
            group, trajectories=tuple(replace(t, rewards={REWARD: 0.3 * i}) for i, t in enumerate(group.trajectories))
        )
        adapter = adapter_of(policy, {"name": "grpo", "scale": "none"})
        keys = [(await adapter.prepare(c, None)).key for c in (collection(group), collection(other), collection(group, step=1))]
        assert len(set(keys)) == 3
        spec = await adapter.prepare(collection(group), None)
        assert spec.key == keys[0]
        one, two = await adapter.submit(spec), await adapter.submit(spec)
        assert one == two
        await adapter.wait(one)
        await adapter.submit(spec)
        assert (await adapter.result(two)).policy.version == policy.version == 1


async def test_the_event_loop_lives_while_it_trains_and_nothing_is_sampled():
    with tiny_policy() as policy:
        group = await sampled_group(policy, [1.0, 0.0, 1.0, 0.0])
        adapter = adapter_of(policy, epochs=30)
        ref = await adapter.submit(await adapter.prepare(collection(group), None))
        seen = set()
        while (status := await adapter.status(ref)).state is JobState.RUNNING:
            seen.add(status.progress)
            await asyncio.sleep(0.001)
        assert len(seen) > 3
        assert max(seen) <= 1
        reply = asyncio.create_task(policy.chat(MESSAGES, SamplingParams(max_tokens=3, seed=1)))
        assert (await reply).policy.version == 1


async def test_cancelling_stops_between_optimiser_steps_and_the_weights_are_refused(tmp_path):
    with tiny_policy() as policy:
        group = await sampled_group(policy, [1.0, 0.0, 1.0, 0.0])
        adapter = adapter_of(policy, epochs=2000)
        adapter.save_state(tmp_path / "c")
        ref = await adapter.submit(await adapter.prepare(collection(group), None))
        while (await adapter.status(ref)).progress in (0.0, None):
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        await adapter.cancel(ref)
        status = await adapter.status(ref)
        assert status.state is JobState.CANCELLED
        assert "cancelled after" in status.message
        assert policy.version == 0
        with pytest.raises(BackendError, match="was cancelled after"):
            await adapter.result(ref)
        with pytest.raises(BackendError, match=r"unfinished update .* resume from the last checkpoint"):
            await adapter.health()
        with pytest.raises(BackendError, match="not saved"):
            adapter.save_state(tmp_path / "d")
        adapter.load_state(tmp_path / "c")
        await adapter.health()


@pytest.mark.parametrize("lora", [None, {"rank": 4}])
async def test_an_update_that_was_broken_off_is_redone_bit_for_bit(lora, tmp_path):
    settings = {"lora": lora, "epochs": 3, "batch_size": 2, "schedule": "cosine", "total_steps": 40}
    with tiny_policy() as policy:
        adapter = adapter_of(policy, {"name": "grpo", "kl_coefficient": 0.1}, **settings)
        first = await sampled_group(policy, [1.0, 0.0, 1.0, 0.0])
        await update(adapter, collection(first))
        adapter.save_state(tmp_path / "c")
        second = await sampled_group(policy, [0.0, 1.0, 1.0, 0.0], example=2)
        whole = await update(adapter, collection(second, step=1))
    with tiny_policy() as policy:
        adapter = adapter_of(policy, {"name": "grpo", "kl_coefficient": 0.1}, **settings)
        adapter.load_state(tmp_path / "c")
        assert policy.version == 1
        again = await sampled_group(policy, [0.0, 1.0, 1.0, 0.0], example=2)
        assert again == second  # the engine samples from what was loaded
        ref = await adapter.submit(await adapter.prepare(collection(again, step=1), None))
        while (await adapter.status(ref)).progress == 0:
            await asyncio.sleep(0)
        await adapter.cancel(ref)  # broken off somewhere
        adapter.load_state(tmp_path / "c")
        redone = await update(adapter, collection(again, step=1))
    assert replace(redone, seconds=0) == replace(whole, seconds=0)


# -------------------------------------------------------------------------------------------------------- what goes wrong


async def test_nothing_to_train_on_is_said_before_anything_starts():
    with tiny_policy() as policy:
        adapter = adapter_of(policy, max_length=20)
        flat = await sampled_group(policy, [1.0, 1.0])
        with pytest.raises(NoTrainableSignal, match=r"step 0: of 1 items .* 2 were dropped|advantage 0"):
            await adapter.prepare(collection(flat), None)


async def test_too_long_is_dropped_by_default_at_what_the_model_was_made_for():
    with tiny_policy() as policy:
        short = await sampled_group(policy, [1.0, 0.0])
        long = trajectory((5,) * 510, (6, 7, 8), [-5.0] * 3, 1.0, rollout="long", version=None)
        spec = await adapter_of(policy).prepare(collection(Group(1, (*short.trajectories, long))), None)
    assert [drop.rollout_id for drop in spec.dropped] == ["long"]
    assert spec.items == 2


async def test_whatever_breaks_an_update_off_its_weights_are_not_saved(monkeypatch, tmp_path):
    """Not only errors of our own: torch has many."""
    with tiny_policy() as policy:
        adapter = adapter_of(policy, "dpo", batch_size=1)
        scores = TrainerScorer.scores

        def breaks(self, batch):
            if adapter._learner.optimiser.steps == 1:
                raise IndexError("index out of range")
            return scores(self, batch)

        monkeypatch.setattr(TrainerScorer, "scores", breaks)
        with pytest.raises(StageError, match="index out of range"):
            await update(adapter, collection(*PAIRS))
        with pytest.raises(BackendError, match=r"unfinished update \(index out of range\)"):
            await adapter.health()
        with pytest.raises(BackendError, match="not saved"):
            adapter.save_state(tmp_path / "c")


async def test_an_engine_that_keeps_the_old_weights_is_found(monkeypatch):
    with tiny_policy() as policy:
        group = await sampled_group(policy, [1.0, 0.0])
        adapter = adapter_of(policy)
        scores = [[-1.0] * 6 for _ in range(2)]

        async def stale(rows, *, temperature=1.0, stop_ids=()):
            if rows == adapter._fixed.rows:
                return adapter._base_scores
            return [row[: len(completion)] for row, (_, completion) in zip(scores, rows, strict=True)]

        monkeypatch.setattr(policy.engine, "score", stale)
        with pytest.raises(AgreementError, match="what samples is not what is trained"):
            await update(adapter, collection(group))
        monkeypatch.setattr(adapter, "_bound", 1e9)
        adapter._unfit = None
        with pytest.raises(AgreementError, match=r"engine changed: .* it still samples from the old ones"):
            await update(adapter, collection(await _fresh(policy), step=1))


@pytest.mark.parametrize("arch", ["qwen2", "gemma3"])
async def test_adapters_of_embedding_and_output_layer_reach_the_engine(arch):
    with tiny_policy(arch, pad_is_eos=True) as policy:
        adapter = adapter_of(policy, "dpo", lora={"rank": 4, "target_modules": ["embed_tokens", "lm_head"]}, learning_rate=0.03)
        for step in range(2):
            result = await update(adapter, replace(collection(*PAIRS), step=step))
        end = adapter._learner.weights.tensors()[_EMBEDDING_A][:, policy.tokenizer.eos_token_id]
    assert result.metrics["agreement_max_abs"] < 1e-4
    assert result.metrics["canary_moved"] > 1e-3
    assert end.abs().max() > 0  # the end of a turn is trained also where it is the padding


_EMBEDDING_A = "base_model.model.model.embed_tokens.lora_embedding_A.default"


@pytest.mark.parametrize(("dtype", "rate"), [(torch.float32, 1e-12), (torch.bfloat16, 1e-7)])
@pytest.mark.parametrize("lora", [None, {"rank": 4}])
async def test_a_step_below_rounding_is_no_stale_engine(dtype, rate, lora):
    """A warm-up's first: weights change, and no logprob shows it."""
    with tiny_policy(dtype=dtype) as policy:
        result = await update(adapter_of(policy, "dpo", lora=lora, learning_rate=rate), collection(*PAIRS))
    assert result.metrics["canary_moved"] < 0.1
    assert result.policy.version == 1


async def test_an_engine_that_samples_from_the_base_is_found(monkeypatch):
    """The bound is so wide that neither it nor a movement would tell; the adapter's own start-up scores do."""
    with tiny_policy() as policy:
        adapter = adapter_of(policy, lora={"rank": 4, "alpha": 8}, learning_rate=0.3, agreement={"bound": 2.0})
        base, score, rounding = adapter._base_scores, policy.engine.score, itertools.count()

        async def of_the_base(rows, **options):
            if rows != adapter._fixed.rows:
                return await score(rows, **options)
            apart = 1e-6 * next(rounding)
            return [[value + apart for value in row] for row in base]

        monkeypatch.setattr(policy.engine, "score", of_the_base)
        with pytest.raises(AgreementError, match=r"engine is not the base: .* has gone 0% of that way"):
            await update(adapter, collection(await sampled_group(policy, [1.0, 0.0, 0.5, 0.5])))


async def test_the_base_of_a_resumed_run_is_the_untrained_policy(tmp_path):
    with tiny_policy() as policy:
        adapter = adapter_of(policy, learning_rate=0.01)
        first = await update(adapter, collection(await sampled_group(policy, [1.0, 0.0])))
        adapter.save_state(tmp_path / "state")
    with tiny_policy() as policy:
        again = adapter_of(policy, learning_rate=0.01)
        again.load_state(tmp_path / "state")
        second = await update(again, collection(await sampled_group(policy, [1.0, 0.0]), step=1))
    assert again._base_scores == adapter._base_scores
    assert 0 < first.metrics["canary_from_base"] < second.metrics["canary_from_base"]


async def _fresh(policy):
    return await sampled_group(policy, [1.0, 0.0], example=5)


async def test_an_error_of_the_update_reaches_whoever_asks_for_the_result(monkeypatch):
    with tiny_policy() as policy:
        group = await sampled_group(policy, [1.0, 0.0])
        adapter = adapter_of(policy)

        def fails(self, batch):
            raise torch.OutOfMemoryError("CUDA out of memory")

        monkeypatch.setattr(TrainerScorer, "scores", fails)
        ref = await adapter.submit(await adapter.prepare(collection(group), None))
        assert (await adapter.wait(ref)).state is JobState.FAILED
        with pytest.raises(BackendError, match="lower max_tokens_per_microbatch"):
            await adapter.result(ref)
        await adapter.health()  # no optimiser step was made: the weights are whole


async def test_a_job_of_another_process_is_not_known_here():
    with tiny_policy() as policy:
        group = await sampled_group(policy, [1.0, 0.0])
        spec = await adapter_of(policy).prepare(collection(group), None)
        with pytest.raises(BackendError, match="was not prepared here"):
            await adapter_of(policy).submit(spec)


async def test_a_reward_and_the_untrained_reference():
    with tiny_policy() as policy:
        group = await sampled_group(policy, [1.0, 0.0])
        with pytest.raises(ConfigError, match="trained on a reward, and there is none"):
            await adapter_of(policy, rewards=()).prepare(collection(group), None)
        held = adapter_of(policy, {"name": "grpo", "kl_coefficient": 0.1})
        with pytest.raises(BackendError, match="the weights of version 3, the reference that is asked for, are gone"):
            await held.prepare(collection(group), PolicyRef("policy", 3))


async def test_the_factory_makes_it_from_the_config():
    class Parts:
        entry_name, seed, target = "gpu", 3, Target(("<workflow>",), "policy", (RewardTerm(REWARD),))
        folder = None

        async def get_policy(self):
            return policy

    with tiny_policy() as policy:
        made = local_trainer_adapter(config(lora={"rank": 2}), Parts())
        adapter = await anext(made)
        assert adapter.trained_parameters < 10_000
        assert (await update(adapter, collection(await sampled_group(policy, [1.0, 0.0])))).policy.version == 1
        await made.aclose()


# ------------------------------------------------------------------------------------------------------------- the config


def test_what_it_takes():
    assert config("grpo").takes() == {"group"}
    assert config("dpo").takes() == {"pair"}
    assert LocalTrainerAdapterConfig.needs_local_model


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": {"name": "dr_grpo"}}, "needs length_limit"),
        ({"algorithm": {"name": "dapo"}}, "the overlong penalty of dapo needs length_limit"),
        ({"algorithm": {"name": "grpo", "length_limit": 5}}, "length_limit would be ignored"),
        ({"algorithm": {"name": "grpo", "kl_estimator": "k1"}}, "kl_estimator would be ignored: kl_coefficient is 0"),
        ({"algorithm": {"name": "rloo", "length_limit": 5, "clip_low": 0.1}}, "clip_low would be ignored"),
        ({"algorithm": {"name": "rloo", "length_limit": 5, "eps": 0.1}}, "eps would be ignored: scale: none"),
        ({"algorithm": {"name": "rloo", "length_limit": 5, "surrogate": "clipped"}}, "clip_low and clip_high are needed"),
        ({"algorithm": {"name": "cispo", "dual_clip": 3}}, "dual_clip would be ignored"),
        ({"algorithm": {"name": "grpo", "ratio_cap": 1.1}}, "ratio_cap must be above 1"),
        ({"algorithm": {"name": "dapo", "length_limit": 5, "advantage": "gdpo"}}, "make length a reward of its own"),
        ({"algorithm": {"name": "grpo", "overlong_penalty": 1.0}}, "overlong_penalty would be ignored"),
        ({"algorithm": {"name": "reinforce", "length_limit": 5}, "epochs": 2}, "epochs must be 1 for surrogate: reinforce"),
        ({"algorithm": {"name": "dpo", "beta": 0.1, "ref_policy_kl_penalty": 0.1}}, "two names of one setting"),
        ({"algorithm": {"name": "dpo", "beta": 0}}, "greater than 0"),
        ({"algorithm": {"name": "dpo", "loss": "ipo", "label_smoothing": 0.1}}, "label_smoothing would be ignored"),
        ({"algorithm": {"name": "dpo", "loss": "robust", "label_smoothing": 0.5}}, "below 0.5 for loss: robust"),
        ({"algorithm": {"name": "dpo", "sft_average_log_probs": True}}, "sft_average_log_probs would be ignored"),
        ({"algorithm": {"name": "dpo", "preference_loss_weight": 0}}, "nothing would be trained"),
        ({"algorithm": {"name": "dpo", "clip_low": 0.1}}, "Extra inputs are not permitted"),
        ({"algorithm": {"name": "ppo"}}, "does not match any of the expected tags"),
        ({"learning_rate": 0}, "greater than 0"),
        ({"lora": {"dropout": 0.1}}, "less than or equal to 0"),
        ({"betas": (0.9, 1.0)}, "betas must be from 0 to below 1"),
        ({"schedule": "cosine"}, "schedule: cosine needs total_steps"),
        ({"total_steps": 5}, "total_steps would be ignored"),
        ({"schedule": "linear", "total_steps": 5, "warmup_steps": 5}, "warmup_steps must be below total_steps"),
        ({"epochs": True}, "valid integer"),
    ],
)
def test_what_would_be_ignored_or_can_not_be_is_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        config(**{"algorithm": {"name": "grpo"}, **settings})


def test_names_of_beta_and_resolved_presets():
    assert config({"name": "dpo", "ref_policy_kl_penalty": 0.3}).algorithm.strength == 0.3
    assert config("dpo").algorithm.strength == 0.1
    resolved = config({"name": "grpo", "clip_high": 0.3, "kl_coefficient": 0.01}).algorithm.preset()
    assert (resolved.clip_low, resolved.clip_high, resolved.kl_coefficient, resolved.scale) == (0.2, 0.3, 0.01, "group")
    gdpo = config("gdpo")
    assert config({"name": "grpo", "advantage": "gdpo"}).algorithm.preset() == gdpo.algorithm.preset()
    assert config({"name": "gdpo", "advantage": "return"}).algorithm.preset() == config("grpo").algorithm.preset()
    assert not config({"name": "gdpo", "batch_norm": False}).algorithm.preset().batch_norm
    assert [c.compares_rewards_apart() for c in (gdpo, config("grpo"), config("dpo"))] == [True, False, False]
    assert config({"name": "grpo", "surrogate": "reinforce"}).algorithm.preset().clip_low is None
    assert config({"name": "dapo", "overlong_buffer_share": 0}).algorithm.preset().overlong_buffer_share is None
