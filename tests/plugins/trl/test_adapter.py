"""A job of TRL's: started once, found again, watched, cancelled, its weights taken over. TRL itself is in tests/peer."""

from __future__ import annotations

import asyncio
import json
import stat
import sys
from pathlib import Path

import pytest
import torch
from nat_finetune_plugins.trl.adapter import TRLTrainerAdapter
from nat_finetune_plugins.trl.settings import TRLTrainerAdapterConfig
from pydantic import ValidationError

from nat_finetune.errors import AgreementError, BackendError, ConfigError, DataError
from nat_finetune.remote.interfaces import RemoteAdapter
from nat_finetune.testing.conformance.remote import CHECKS, check_remote_adapter
from nat_finetune.testing.items import collection, demonstration, pair
from nat_finetune.testing.parts import TARGET
from nat_finetune.types import JobState
from tests.fixtures.training import tiny_policy

DPO = {"algorithm": {"name": "dpo"}, "learning_rate": 1e-3, "poll_seconds": 0.05}
PAIRS = [pair("win", "lose", text=f"move {n}", example=n) for n in range(5)]


@pytest.fixture
def python(tmp_path):
    """A program that stands in for TRL's Python."""
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).with_name("stand_in.py")} "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def adapter_of(policy, folder, python, **changes):
    folder.mkdir(exist_ok=True)
    config = TRLTrainerAdapterConfig(python=python, **{**DPO, **changes})
    return TRLTrainerAdapter(config, policy, target=TARGET, name="trl", seed=3, folder=folder)


async def prepared(adapter, items=PAIRS):
    """A job's spec, and beside it what TRL will measure at the weights that the stand-in makes."""
    spec = await adapter.prepare(collection(*items), None)
    folder = adapter._run_folder / spec.payload["prepared"]
    told = json.loads((folder / "job.json").read_text())
    with tiny_policy() as other, torch.no_grad():
        for parameter in other.model.parameters():
            parameter += 0.01
        scores = await other.engine.score([(tuple(prompt), tuple(said)) for prompt, said in told["canary"]])
    (folder / "expected.json").write_text(json.dumps(scores))
    return spec


async def ended(adapter, ref):
    async with asyncio.timeout(60):
        return await adapter.wait(ref)


async def test_a_job_is_started_once_and_its_weights_are_sampled_afterwards(tmp_path, python):
    with tiny_policy() as policy:
        before = {name: value.clone() for name, value in policy.model.state_dict().items()}
        adapter = adapter_of(policy, tmp_path / "run", python)
        assert isinstance(adapter, RemoteAdapter)
        await adapter.health()
        spec = await prepared(adapter)
        assert await adapter.find(spec) is None
        refs = [await adapter.submit(spec), await adapter.submit(spec)]
        other = adapter_of(policy, tmp_path / "run", python)  # as another process would make it
        assert refs == [await other.find(spec)] * 2
        status = await ended(other, refs[0])
        assert (status.state, status.progress, status.metrics) == (JobState.COMPLETED, 1.0, {"loss": 0.5})
        result = await other.result(refs[0])
        job = tmp_path / "run" / refs[0].metadata["folder"]
        assert (job / "begun").read_text() == "once\n"
        assert await other.logs(refs[0]) == ["pairs.py begins"]
        after = policy.model.state_dict()
        assert all(torch.allclose(after[name], value + 0.01) for name, value in before.items())
        assert (result.policy.version, policy.version, result.optimiser_steps) == (1, 1, 2)
        assert [step["loss"] for step in result.curve] == [0.7, 0.5]
        assert result.metrics["margin"] == pytest.approx(0.1)
        assert result.metrics["agreement_max"] < 1e-4
        assert result.backend["versions"]["trl"] == "1.16.0"
        again = await adapter.result(refs[0])  # a crash may come between the result and the checkpoint
        assert again.policy == result.policy


async def test_a_checkpoint_is_all_of_it(tmp_path, python):
    with tiny_policy() as policy:
        adapter = adapter_of(policy, tmp_path / "run", python)
        ref = await adapter.submit(await prepared(adapter))
        await ended(adapter, ref)
        digest = (await adapter.result(ref)).policy.digest
        adapter.save_state(tmp_path / "checkpoint")
    with tiny_policy() as other:
        fresh = adapter_of(other, tmp_path / "run", python)
        fresh.load_state(tmp_path / "checkpoint")
        assert (other.version, other.ref().digest) == (1, digest)
        with pytest.raises(BackendError, match="no checkpoint of trl_trainer_adapter"):
            fresh.load_state(tmp_path)


async def test_a_job_that_fails_says_why(tmp_path, python):
    with tiny_policy() as policy:
        adapter = adapter_of(policy, tmp_path / "run", python, overrides={"fail": True})
        ref = await adapter.submit(await prepared(adapter))
        status = await ended(adapter, ref)
        assert (status.state, status.backend_state) == (JobState.FAILED, "exit code 1")
        with pytest.raises(BackendError, match="ValueError: no such loss"):
            await adapter.result(ref)
        assert policy.version == 0


async def test_a_job_is_cancelled_with_all_that_it_started(tmp_path, python):
    with tiny_policy() as policy:
        adapter = adapter_of(policy, tmp_path / "run", python, overrides={"hang": True}, grace_seconds=5)
        ref = await adapter.submit(await prepared(adapter))
        async with asyncio.timeout(30):
            while (status := await adapter.status(ref)).progress is None:
                await asyncio.sleep(0.05)
        assert (status.state, status.progress) == (JobState.RUNNING, 0.5)
        await adapter.cancel(ref)
        assert (await adapter.status(ref)).state is JobState.CANCELLED


async def test_weights_that_are_not_those_that_were_trained_are_found(tmp_path, python):
    with tiny_policy() as policy:
        adapter = adapter_of(policy, tmp_path / "run", python, overrides={"lie": True})
        ref = await adapter.submit(await prepared(adapter))
        await ended(adapter, ref)
        with pytest.raises(AgreementError, match="1 nats apart"):
            await adapter.result(ref)


async def test_an_environment_without_trl_is_refused_before_anything_is_made(tmp_path, python):
    with tiny_policy() as policy:
        with pytest.raises(BackendError, match=r"trl: expected 1.16.\*, found none.*pip install 'trl==1.16.\*'"):
            await adapter_of(policy, tmp_path / "run", sys.executable).health()
        with pytest.raises(BackendError, match=r"is no program on this machine .*`make trl`.*NAT_FINETUNE_TRL_PYTHON"):
            await adapter_of(policy, tmp_path / "run", str(tmp_path / "gone")).health()
        with pytest.raises(BackendError, match=r"peft: expected 0.\*, found none"):
            await adapter_of(policy, tmp_path / "run", python, lora={"rank": 2}).health()


async def test_items_are_told_as_tokens_in_the_order_of_the_local_trainer(tmp_path, python):
    with tiny_policy() as policy:
        adapter = adapter_of(policy, tmp_path / "run", python, epochs=2, batch_size=2, schedule="linear", warmup_steps=1)
        spec = await adapter.prepare(collection(*PAIRS), None)
        folder = tmp_path / "run" / spec.payload["prepared"]
        told = json.loads((folder / "job.json").read_text())
        rows = [json.loads(line) for line in (folder / "data.jsonl").read_text().splitlines()]
        from nat_finetune.data.seeds import derive_seed
        from nat_finetune.local.optimise import item_order
        from nat_finetune.local.settings import LoopSettings

        order = list(item_order(5, LoopSettings(epochs=2, batch_size=2), derive_seed(3, "update", 0)))
        assert [step for once in told["order"] for step in once] == order
        assert [round(rate, 7) for rate in told["rates"]] == [1e-3, 1e-3, 8e-4, 6e-4, 4e-4, 2e-4]
        assert rows[0]["chosen"] == [{"role": "assistant", "content": "win"}]
        assert policy.format.decode(rows[0]["chosen_ids"]).startswith("win")
        assert rows[0]["prompt_ids"] == list(policy.format.render(PAIRS[0].context))
        assert spec.items == 5


async def test_what_trl_can_not_do_is_refused(tmp_path, python):
    with tiny_policy() as policy:
        adapter = adapter_of(policy, tmp_path / "run", python)
        with pytest.raises(ConfigError, match="pair_weighting: pair"):
            await adapter.prepare(collection(*PAIRS, pair("a", "b", weight=0.5)), None)
        short = adapter_of(policy, tmp_path / "run", python, max_length=8, on_too_long="fail")
        with pytest.raises(DataError, match="5 items are too long"):
            await short.prepare(collection(*PAIRS), None)
        homeless = TRLTrainerAdapter(short._config, policy, target=TARGET, name="trl", seed=0, folder=None)
        with pytest.raises(BackendError, match="needs a run's folder"):
            await homeless.prepare(collection(demonstration("x")), None)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"overrides": {"learning_rate": 1.0}}, "overrides.learning_rate is not yours to set"),
        ({"batch_size": 6, "micro_batch_size": 4}, "must be a multiple of micro_batch_size"),
        ({"algorithm": {"name": "gdpo", "scale": "none"}}, "scale would be ignored"),
        ({"algorithm": {"name": "grpo", "reduction": "constant_length"}}, "needs length_limit"),
        ({"algorithm": {"name": "grpo"}, "max_length": 9}, "max_length would be ignored"),
        ({"algorithm": {"name": "dpo", "label_smoothing": 0.1}}, "label_smoothing would be ignored"),
        ({"algorithm": {"name": "dpo", "sft_loss_weight": 0.1}}, "sft_loss_weight"),
        ({"betas": [0.9, 1.0]}, "betas must be"),
    ],
)
def test_a_knob_that_would_be_ignored_is_refused(changes, said):
    with pytest.raises(ValidationError, match=said):
        TRLTrainerAdapterConfig(python="python", **{**DPO, **changes})


def test_it_keeps_the_promises_of_a_remote_adapter(tmp_path, python):
    config = TRLTrainerAdapterConfig(python=python, agreement_bound=1e6, grace_seconds=5, **DPO)
    assert check_remote_adapter(config, lambda: collection(*PAIRS), policies=tiny_policy) == list(CHECKS)


async def test_items_of_another_kind_are_refused(tmp_path, python):
    with tiny_policy() as policy:
        for changes, items in (({}, [demonstration("x")]), ({"algorithm": {"name": "sft"}}, PAIRS)):
            with pytest.raises(ConfigError, match="this algorithm trains on a"):
                await adapter_of(policy, tmp_path / "run", python, **changes).prepare(collection(*items), None)
        groups = adapter_of(policy, tmp_path / "run", python, algorithm={"name": "grpo"})
        with pytest.raises(ConfigError, match="backend_trainer"):
            await groups.prepare(collection(*PAIRS), None)


def test_an_adapter_is_saved_and_taken_over_as_one(tmp_path, python):
    with tiny_policy() as policy:
        adapter = adapter_of(policy, tmp_path / "run", python, lora={"rank": 2})
        trained = {name: value for name, value in policy.model.named_parameters() if "lora_B" in name}
        with torch.no_grad():
            for value in trained.values():
                value += 0.5
        adapter.save_state(tmp_path / "checkpoint")
        want = {name: value.clone() for name, value in trained.items()}
    assert (tmp_path / "checkpoint" / "weights" / "adapter_model.safetensors").is_file()
    with tiny_policy() as other:
        adapter_of(other, tmp_path / "run", python, lora={"rank": 2}).load_state(tmp_path / "checkpoint")
        found = dict(other.model.named_parameters())
        assert all(torch.equal(found[name], value) for name, value in want.items())
    with tiny_policy() as other, pytest.raises(BackendError, match="the policy has none"):
        adapter_of(other, tmp_path / "run", python).load_state(tmp_path / "checkpoint")
    with tiny_policy() as other, pytest.raises(BackendError, match="another adapter"):
        adapter_of(other, tmp_path / "run", python, lora={"rank": 4}).load_state(tmp_path / "checkpoint")
