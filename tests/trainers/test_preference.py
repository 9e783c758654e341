"""Rounds, warm-up and the reference of preference training, on the shipped policy and workflow."""

import hashlib
import json
import math
from pathlib import Path

import pytest

from nat_finetune.config.load import load_config
from nat_finetune.errors import ConfigError
from nat_finetune.finetune import continued_run, evaluate_config, finetune, new_run
from nat_finetune.registry import Registry
from nat_finetune.report.progress import NullProgress
from nat_finetune.runstore import RunStore
from tests.e2e.runs import small_config

LN_2 = pytest.approx(math.log(2), abs=1e-4)


class Killed(BaseException):
    """The process is gone."""


def load(folder, *overrides):
    path, *given = small_config("dpo_tic_tac_toe", folder, train=3, held_out=2)
    gentle = ("epochs=1", "warmup_steps=0", "learning_rate=1e-4")  # or the second round's candidates would all tie
    values = [*given[3::2], *(f"trainer_adapters.here.{setting}" for setting in gentle), *overrides]
    return load_config(path, overrides=values, registry=Registry.installed())


async def run(folder, *overrides):
    loaded = load(folder, *overrides)
    store = new_run(loaded, folder / "runs")
    return store, await finetune(loaded, Registry.installed(), store, NullProgress())


def first_losses(store):
    """The first optimiser step's preference loss of each update."""
    return [
        json.loads(path.read_text())["curve"][0]["preference_loss"] for path in sorted((store.folder / "updates").iterdir())
    ]


def weights(store):
    checkpoint = store.checkpoint(store.state().checkpoint)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in checkpoint.glob("*.safetensors")}


ROUNDS = ("trainers.once.num_rounds=2", "finetuning.num_epochs=2")


@pytest.mark.parametrize("lora", [(), ("trainer_adapters.here.lora.rank=4",)])
async def test_the_reference_is_kept_or_is_that_of_the_last_round(tmp_path, lora):
    kept, report = await run(tmp_path, *ROUNDS, *lora)
    losses = first_losses(kept)
    assert losses[0] == LN_2
    assert len(losses) == 4
    assert abs(losses[2] - math.log(2)) > 1e-3
    assert [step["rollouts"] for step in report["steps"]] == [3, 0, 3, 0]  # fresh candidates in every round, none between
    assert [step["policy_version"] for step in report["steps"]] == [0, 1, 2, 3]
    assert sum(row["share"] for row in report["ledger"]["rows"]) == pytest.approx(1.0)
    (tmp_path / "anew").mkdir()
    anew, _ = await run(tmp_path / "anew", *ROUNDS, *lora, "trainers.once.reference=last_round")
    losses = first_losses(anew)
    assert losses[0] == losses[2] == LN_2
    assert abs(losses[3] - math.log(2)) > 1e-3


async def test_after_a_warm_up_the_reference_is_the_policy_at_the_start_of_dpo(tmp_path):
    store, _ = await run(tmp_path, "trainers.once.sft_warmup_epochs=2", "finetuning.num_epochs=2")
    updates = [json.loads(path.read_text()) for path in sorted((store.folder / "updates").iterdir())]
    assert [update["policy"]["version"] for update in updates] == [1, 2, 3, 4]
    assert updates[1]["metrics"]["chosen_logprob"] > updates[0]["metrics"]["chosen_logprob"]
    assert updates[0]["metrics"]["loss"] == pytest.approx(updates[0]["metrics"]["sft_loss"])
    losses = first_losses(store)
    assert losses[2] == LN_2
    assert abs(losses[3] - math.log(2)) > 1e-4


@pytest.mark.parametrize("count", [1, 3, 5])
async def test_a_run_killed_anywhere_in_its_rounds_ends_with_the_same_weights(tmp_path, monkeypatch, count):
    overrides = (*ROUNDS, "trainers.once.num_runs=2", "trainers.once.sft_warmup_epochs=1", "trainers.once.reference=last_round")
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    whole, expected = await run(tmp_path / "whole", *overrides)
    original, calls = RunStore.save_update, []

    def killing(self, step, result):
        calls.append(step)
        if len(calls) == count:
            raise Killed
        original(self, step, result)

    monkeypatch.setattr(RunStore, "save_update", killing)
    with pytest.raises(Killed):
        await run(tmp_path / "killed", *overrides)
    monkeypatch.undo()
    (folder,) = (tmp_path / "killed" / "runs").iterdir()
    loaded, store = continued_run(folder, Registry.installed())
    report = await finetune(loaded, Registry.installed(), store, NullProgress())
    assert weights(store) == weights(whole)
    assert "reference.safetensors" in weights(store)
    assert report["ledger"] == expected["ledger"]
    assert report["dropped"] == expected["dropped"]
    assert [step["step"] for step in report["steps"]] == [1, 2, 3, 5, 6]


def test_what_would_be_ignored_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="reference: last_round would be ignored: num_rounds is 1"):
        load(tmp_path, "trainers.once.reference=last_round")


async def test_the_same_traces_train_sft_with_another_builder_and_algorithm(tmp_path):
    path, *given = small_config("dpo_tic_tac_toe", tmp_path, train=3, held_out=2)
    text = Path(path).read_text(encoding="utf-8").replace("../workflows", str(Path(path).parents[1] / "workflows"))
    for old, new in (
        ("_type: dpo_traj_builder", "_type: sft_traj_builder"),
        ("    exhaustive_pairs: true\n    min_score_diff: 0.05\n", ""),
        ("algorithm: {name: dpo, beta: 0.1, sft_loss_weight: 0.1}", "algorithm: {name: sft}"),
    ):
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "sft.yml").write_text(text, encoding="utf-8")
    loaded = load_config(
        tmp_path / "sft.yml", overrides=[*given[3::2], "finetuning.num_epochs=3"], registry=Registry.installed()
    )
    store = new_run(loaded, tmp_path / "runs")
    report = await finetune(loaded, Registry.installed(), store, NullProgress())
    nll = [step["update"]["nll"] for step in report["steps"]]
    assert nll[0] > nll[1] > nll[2]
    assert report["dropped"][0]["reason"] == "not_best"
    assert {row["reason"] for row in report["ledger"]["rows"] if row["bucket"] == "dropped"} >= {"not_best"}


async def test_the_chosen_checkpoint_is_kept_tested_and_taken(tmp_path):
    select = ("select=move_quality", "mode=min", "interval=1")  # training makes it larger, so that an early one is chosen
    settings = [f"finetuning.validation.{setting}" for setting in select]
    store, report = await run(tmp_path, "finetuning.num_epochs=4", "trainer_adapters.here.learning_rate=1e-3", *settings)
    values = [point["metrics"]["move_quality"]["mean"] for point in report["validations"]][1:]
    best = values.index(min(values)) + 1
    assert best < 4
    assert report["checkpoint"]["name"] == f"step-{best:05d}"
    assert report["checkpoint"]["why"].startswith("the lowest move_quality on the validation set")
    assert {path.name for path in (store.folder / "checkpoints").iterdir()} == {f"step-{best:05d}", "step-00004"}
    assert store.evaluation("test-after").policy.version == best
    again = await evaluate_config(load(tmp_path), Registry.installed(), "test", store.folder)
    assert again.policy.version == 4  # this config chooses by nothing
    own = load_config(store.folder / "config.yml", registry=Registry.installed())
    again = await evaluate_config(own, Registry.installed(), "test", store.folder)
    assert again.policy.version == best
    assert again.metrics == store.evaluation("test-after").metrics


async def test_patience_ends_the_training_and_says_why(tmp_path):
    settings = [
        f"finetuning.validation.{setting}" for setting in ("select=move_quality", "mode=min", "interval=1", "patience=1")
    ]
    store, report = await run(tmp_path, "finetuning.num_epochs=9", "trainer_adapters.here.learning_rate=1e-3", *settings)
    assert len(report["steps"]) < 9
    assert any("has not become better than" in text for text in report["warnings"])
    assert store.state().finished
