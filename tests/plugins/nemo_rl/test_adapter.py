"""The adapter against a fake `uv` that keeps NeMo RL's rules, as a process on this machine."""

import asyncio
import json
import os
import shlex
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from nat_finetune_plugins.nemo_rl.checkpoints import conversion

from nat_finetune.errors import BackendError, ConfigError, JobGoesOn, NoTrainableSignal
from nat_finetune.remote.interfaces import RemoteAdapter
from nat_finetune.types import JobState
from tests.plugins.nemo_rl.made import adapter, collection, pairs, settings
from tests.plugins.nemo_rl.stock import behave, make_checkout, starts


@pytest.fixture
def checkout(tmp_path):
    return make_checkout(tmp_path / "rl")


async def submitted(made, count=10):
    spec = await made.prepare(collection(pairs(count)), None)
    return spec, await made.submit(spec)


async def test_from_pairs_to_a_checkpoint(checkout, tmp_path):
    made = adapter(settings(checkout, epochs=2), tmp_path / "run")
    assert isinstance(made, RemoteAdapter)
    await made.health()
    spec, ref = await submitted(made)
    assert (spec.items, spec.payload["steps"], spec.payload["batch_size"]) == (10, 4, 4)
    assert "2 pairs of each epoch fill no batch of 4" in " ".join(spec.payload["notes"])
    told = await made.wait(ref)
    assert (told.state, told.progress, told.metrics) == (JobState.COMPLETED, 1.0, {"loss": 0.4692, "accuracy": 0.75})
    result = await made.result(ref)
    assert result.policy.version == 1
    assert Path(result.policy.location).name == "step_4"
    assert [step["loss"] for step in result.curve] == [0.6334, 0.5731, 0.5186, 0.4692]
    assert (result.optimiser_steps, result.tokens_trained, result.tokens_masked) == (4, 160, None)
    assert result.metrics["loss"] == pytest.approx(0.548575)
    assert result.backend["checkpoint_chosen_by"] == "the last one"
    assert result.backend["losses"] == {"loss": 0.4692, "accuracy": 0.75}
    assert result.backend["losses_of_first_step"] == {"loss": 0.6334, "accuracy": 0.75}
    assert not made.serving()
    json.dumps(result.backend)


async def test_the_command_to_convert_names_what_is_there(checkout, tmp_path):
    made = adapter(settings(checkout), tmp_path / "run")
    _, ref = await submitted(made)
    await made.wait(ref)
    line, copy = (await made.result(ref)).backend["commands"]
    words = shlex.split(line)
    assert words[:3] == ["cd", str(checkout), "&&"]
    assert "examples/converters/convert_dcp_to_hf.py" in words
    for flag in ("--config", "--dcp-ckpt-path"):
        assert Path(words[words.index(flag) + 1]).exists()
    assert Path(shlex.split(copy)[2]).exists()


async def test_the_best_checkpoint_is_the_result(checkout, tmp_path):
    behave(checkout)
    config = settings(checkout, validation_share=0.2, save_every=1, epochs=5, keep_checkpoints=9)
    made = adapter(config, tmp_path / "run")
    _, ref = await submitted(made, 20)
    await made.wait(ref)
    result = await made.result(ref)
    # The fake's held-out loss falls until step 2 and is half a nat higher from step 3 on.
    assert Path(result.policy.location).name == "step_2"
    assert result.backend["checkpoint_chosen_by"] == "val:validation-default_loss"
    assert len(result.backend["checkpoints"]) == 20
    assert result.metrics["val:validation-default_loss"] == pytest.approx(0.5731, abs=1e-4)


@pytest.mark.parametrize(
    ("fail", "said"),
    [
        ("at_start", "exit code 1.*No module named 'nemo_rl'"),
        ("mid_run", "exit code 1.*a worker died"),
        ("oom", "exit code 1.*the GPU's memory was not enough"),
    ],
)
async def test_a_failure_is_told_with_its_reason(checkout, tmp_path, fail, said):
    behave(checkout, fail=fail)
    made = adapter(settings(checkout), tmp_path / "run")
    _, ref = await submitted(made)
    told = await made.wait(ref)
    assert told.state is JobState.FAILED
    with pytest.raises(BackendError, match=said):
        await made.result(ref)


async def test_a_command_that_is_not_there(checkout, tmp_path):
    made = adapter(settings(checkout, command=["no-such-uv", "run"]), tmp_path / "run")
    _, ref = await submitted(made)
    told = await made.wait(ref)
    assert told.backend_state == "exit code 127"
    assert "see `command`" in told.message


async def test_no_checkpoint_is_no_success(checkout, tmp_path):
    made = adapter(settings(checkout, command=["/bin/echo", "done"]), tmp_path / "run")
    _, ref = await submitted(made)
    assert (await made.wait(ref)).state is JobState.COMPLETED
    with pytest.raises(BackendError, match=r"without a checkpoint .*trained nothing; its last line: done"):
        await made.result(ref)


async def test_a_job_that_hangs_is_left_alone_and_can_be_cancelled(checkout, tmp_path):
    behave(checkout, hang="mid_run", child=True)
    made = adapter(settings(checkout, timeout_seconds=1.5), tmp_path / "run")
    _, ref = await submitted(made)
    with pytest.raises(JobGoesOn):
        await made.wait(ref)
    told = await made.status(ref)
    assert (told.state, told.progress) == (JobState.RUNNING, 0.5)
    await made.cancel(ref)
    assert (await made.status(ref)).state is JobState.CANCELLED
    child = int((checkout / "child.pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0) if not zombie(child) else os.kill(2**22 + 1, 0)
    with pytest.raises(BackendError, match="is cancelled"):
        await made.result(ref)


async def test_the_machine_goes_down(checkout, tmp_path):
    behave(checkout, hang="at_start")
    made = adapter(settings(checkout), tmp_path / "run")
    _, ref = await submitted(made)
    os.killpg(ref.metadata["group"], signal.SIGKILL)
    told = await made.wait(ref)
    assert (told.state, told.backend_state) == (JobState.FAILED, "gone")
    assert "killed, or the machine was restarted" in told.message


async def test_what_would_train_nothing_is_not_started(checkout, tmp_path):
    made = adapter(settings(checkout), tmp_path / "run")
    with pytest.raises(NoTrainableSignal, match="3 pairs to train on are fewer"):
        await made.prepare(collection(pairs(3)), None)
    assert starts(checkout) == []


async def test_a_second_update_would_forget_the_first(checkout, tmp_path):
    made = adapter(settings(checkout), tmp_path / "run")
    _, ref = await submitted(made)
    await made.wait(ref)
    await made.result(ref)
    state = tmp_path / "state"
    state.mkdir()
    made.save_state(state)
    later = adapter(settings(checkout), tmp_path / "run")
    later.load_state(state)
    with pytest.raises(ConfigError, match="begins from `model`"):
        await later.prepare(collection(pairs(10), step=1), None)


async def test_the_key_is_of_what_is_trained(checkout, tmp_path):
    async def key(items, **more):
        made = adapter(settings(checkout, **more), tmp_path / "run")
        return (await made.prepare(collection(items), None)).key

    first = await key(pairs(10))
    assert await key(pairs(10), poll_seconds=3, timeout_seconds=5) == first
    assert await key(pairs(11)) != first
    assert await key(pairs(10), learning_rate=2e-6) != first


async def test_a_tokenizer_at_hand_measures(checkout, tmp_path, tokenizer_folder):
    made = adapter(settings(checkout, tokenizer=str(tokenizer_folder), max_length=16), tmp_path / "run")
    long = pairs(9)[8]
    spec = await made.prepare(collection([*pairs(8), replace(long, chosen="x " * 40)]), None)
    assert spec.payload["lengths_checked"] is True
    assert [drop.reason.value for drop in spec.dropped] == ["too_long"]
    assert spec.items == 8


@pytest.fixture
def tokenizer_folder(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    made = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")
    made.chat_template = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}"
    made.save_pretrained(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def zombie(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


async def test_waiting_does_not_block_the_loop(checkout, tmp_path):
    behave(checkout, step_seconds=0.2)
    made = adapter(settings(checkout), tmp_path / "run")
    _, ref = await submitted(made)
    waiting = asyncio.ensure_future(made.wait(ref))
    ticks = 0
    while not waiting.done():
        await asyncio.sleep(0.01)
        ticks += 1
    assert ticks > 10


async def test_a_further_attempt_is_another_job_on_the_same_data(checkout, tmp_path):
    """What the run does after a job that failed: the same spec under another key."""
    behave(checkout, fail="mid_run")
    made = adapter(settings(checkout, save_every=1), tmp_path / "run")
    spec, ref = await submitted(made, 20)
    assert (await made.wait(ref)).state is JobState.FAILED
    behave(checkout)
    again = replace(spec, key="f" * 64)
    assert await made.find(again) is None
    second = await made.submit(again)
    seen = []
    told = await made.wait(second, on_status=seen.append)
    assert told.state is JobState.COMPLETED
    assert seen[-1] == told
    result = await made.result(second)
    assert (await made.result(second)).policy == result.policy
    assert len(starts(checkout)) == 2
    assert len(set(starts(checkout))) == 1
    with pytest.raises(BackendError, match="exit code 1"):
        await made.result(ref)


async def test_a_workspace_that_the_cluster_calls_otherwise(checkout, tmp_path):
    """The job reads the cluster's paths, this machine its own."""
    seen = tmp_path / "as-the-cluster-sees-it"
    seen.symlink_to(tmp_path / "shared")
    (tmp_path / "shared").mkdir()
    launch = {"name": "ray_jobs"}
    config = settings(checkout, launch=launch, workspace=str(tmp_path / "shared"), workspace_on_cluster=str(seen))
    spec = await adapter(config, tmp_path / "run").prepare(collection(pairs(10)), None)
    assert spec.payload["command"][-1] == f"{seen}/{spec.payload['folder']}/config.yaml"
    written = (tmp_path / "shared" / spec.payload["folder"] / "config.yaml").read_text()
    assert f"data_path: {seen}/" in written
    assert str(tmp_path / "shared") not in written
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("dtensor", "uv run examples/converters/convert_dcp_to_hf.py --config /s/step_2/config.yaml --dcp-ckpt-path"),
        ("megatron", "uv run --extra mcore examples/converters/convert_megatron_to_hf.py --config /s/step_2/config.yaml"),
        ("megatron lora", "--adapter-ckpt /s/step_2/policy/weights/iter_0000000 --hf-model-name org/model --hf-ckpt-path /out"),
        ("dtensor lora", "cp -r /s/step_2/policy/weights/model/. /out/"),
    ],
)
def test_each_kind_of_checkpoint_has_its_command(kind, said):
    lines = conversion("/s/step_2", checkout="/rl", command=("uv", "run"), kind=kind, model="org/model", output="/out")
    assert said in lines[0]
    assert lines[1] == "cp -r /s/step_2/policy/tokenizer/. /out/"
