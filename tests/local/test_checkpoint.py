from __future__ import annotations

import json
import os

import pytest
import torch

from nat_finetune.errors import BackendError, OutputError
from nat_finetune.local.checkpoint import COUNTERS, TRAINED, load_checkpoint, save_checkpoint
from nat_finetune.local.optimise import optimise
from nat_finetune.local.pair_objective import PairObjective
from nat_finetune.local.pair_rows import encode_pairs
from nat_finetune.local.settings import LoopSettings, LoraSettings, PreferenceSettings
from tests.fixtures.training import learner_of, pair, tiny_policy

PAIRS = [pair("the quick brown fox", "o"), pair("win", "lose", text="move 0 1 2 3"), pair("1", "2"), pair("3", "4")]


def train(policy, learner, *, seed):
    objective = PairObjective(encode_pairs(PAIRS, policy.format, max_length=None), PreferenceSettings())
    settings = LoopSettings(epochs=2, batch_size=3)
    return optimise(learner, objective, settings, seed=seed, progress=lambda s: None, cancelled=lambda: False)


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=4)])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(lora, tmp_path):
    settings = {"rate": 1e-2, "lora": lora, "reference": True, "schedule": "cosine", "total_steps": 12, "weight_decay": 0.01}
    with tiny_policy() as policy:
        learner = learner_of(policy, **settings)
        train(policy, learner, seed=1)
        save_checkpoint(tmp_path / "c", learner.weights, learner.optimiser, version=1)
        straight = train(policy, learner, seed=2)
        whole = learner.weights.digest()
    with tiny_policy() as policy:
        learner = learner_of(policy, **settings)
        assert load_checkpoint(tmp_path / "c", learner.weights, learner.optimiser).version == 1
        resumed = train(policy, learner, seed=2)
        assert learner.weights.digest() == whole
    assert resumed == straight
    with tiny_policy() as policy:  # and it matters what is restored
        learner = learner_of(policy, **settings)
        load_checkpoint(tmp_path / "c", learner.weights, learner.optimiser)
        learner.optimiser.load({}, steps=4)
        train(policy, learner, seed=2)
        assert learner.weights.digest() != whole


def test_only_what_is_trained_is_saved(tmp_path):
    with tiny_policy() as policy:
        learner = learner_of(policy, lora=LoraSettings(rank=2))
        save_checkpoint(tmp_path / "c", learner.weights, learner.optimiser, version=0)
        names = set(learner.weights.tensors())
    assert all("lora_" in name for name in names)
    assert (tmp_path / "c" / TRAINED).stat().st_size < 4 * learner.weights.count + 20_000
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == [
        "optimiser.safetensors",
        "trained.safetensors",
        "trainer.json",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_a_checkpoint_takes_the_place_of_an_older_one_whole(tmp_path):
    with tiny_policy() as policy:
        learner = learner_of(policy)
        folder = tmp_path / "c"
        folder.mkdir()
        (folder / "leftover").write_text("x")
        save_checkpoint(folder, learner.weights, learner.optimiser, version=3)
        assert not (folder / "leftover").exists()
        assert json.loads((folder / COUNTERS).read_text())["version"] == 3
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    with tiny_policy() as policy:
        learner = learner_of(policy)
        save_checkpoint(tmp_path / "c", learner.weights, learner.optimiser, version=1)

        def full(descriptor):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OutputError, match=r"No space left on device; free space .* --resume"):
            save_checkpoint(tmp_path / "c", learner.weights, learner.optimiser, version=2)
        monkeypatch.undo()
        assert load_checkpoint(tmp_path / "c", learner.weights, learner.optimiser).version == 1
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def damage(folder):
    data = bytearray((folder / TRAINED).read_bytes())
    data[-7] ^= 0x40
    (folder / TRAINED).write_bytes(data)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (damage, "the weights are not those that were saved"),
        (lambda folder: (folder / TRAINED).write_bytes(b"no"), "is no checkpoint that can be read"),
        (lambda folder: (folder / COUNTERS).unlink(), "is no checkpoint that can be read"),
        (lambda folder: (folder / COUNTERS).write_text('{"version": 1}'), "is no checkpoint that can be read"),
    ],
)
def test_a_damaged_checkpoint_is_refused(tmp_path, harm, message):
    with tiny_policy() as policy:
        learner = learner_of(policy)
        save_checkpoint(tmp_path / "c", learner.weights, learner.optimiser, version=1)
        harm(tmp_path / "c")
        with pytest.raises(BackendError, match=message):
            load_checkpoint(tmp_path / "c", learner.weights, learner.optimiser)


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=2)])
def test_a_checkpoint_of_another_config_is_refused(tmp_path, lora):
    with tiny_policy() as policy:
        learner = learner_of(policy, lora=LoraSettings(rank=4))
        save_checkpoint(tmp_path / "c", learner.weights, learner.optimiser, version=1)
    with tiny_policy() as policy:
        learner = learner_of(policy, lora=lora)
        with pytest.raises(BackendError, match="resume with the model and lora settings"):
            load_checkpoint(tmp_path / "c", learner.weights, learner.optimiser)


def test_masters_of_a_narrow_model_keep_steps_that_it_rounds_away(tmp_path):
    with tiny_policy(dtype=torch.bfloat16) as policy:
        learner = learner_of(policy, rate=1e-5, reference=True)
        name = "model.layers.0.mlp.up_proj.weight"
        before, narrow = learner.weights.tensors()[name].clone(), policy.model.get_parameter(name).detach().clone()
        train(policy, learner, seed=1)
        master = learner.weights.tensors()[name]
        assert master.dtype == torch.float32
        steps = (master - before).abs()
        assert 0 < steps.max() < 1e-4
        assert torch.equal(policy.model.get_parameter(name), master.bfloat16())
        assert (policy.model.get_parameter(name) == narrow).float().mean() > 0.9  # most steps are too small to show
        save_checkpoint(tmp_path / "c", learner.weights, learner.optimiser, version=1)
        saved = {key: value.clone() for key, value in learner.weights.tensors().items()}
        train(policy, learner, seed=2)
        load_checkpoint(tmp_path / "c", learner.weights, learner.optimiser)
        assert all(torch.equal(value, saved[key]) for key, value in learner.weights.tensors().items())
