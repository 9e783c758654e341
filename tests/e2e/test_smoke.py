"""`nat-finetune smoke`: the whole way in small, with any workflow, and an honest word about its scores."""

import pytest

from nat_finetune.cli.main import main
from nat_finetune.errors import BackendError, ConfigError
from tests.e2e.runs import ROOT

CONFIGS = ROOT / "configs"


@pytest.mark.parametrize("name", ["grpo_tic_tac_toe", "dpo_tic_tac_toe"])
def test_shipped_configs_hold_together(name, tmp_path, capsys):
    config = str(CONFIGS / f"{name}.yml")
    changes = ["-o", "trajectory_builders.groups.num_generations=4"] if name.startswith("grpo") else []
    assert main(["smoke", config, "--keep", str(tmp_path), *changes]) == 0
    said = capsys.readouterr().out
    assert "synthetic scores (real ones left nothing to train on)" in said  # a policy of bytes makes no legal move
    assert "the plumbing holds" in said
    assert (tmp_path / "exported" / "model.safetensors").is_file()


@pytest.mark.parametrize(("name", "scores"), [("grpo_claims_review", "synthetic scores"), ("dpo_claims_review", "real scores")])
def test_synthetic_scores_are_not_held_against_known_answers(name, scores, tmp_path, capsys):
    checked = ["-o", "finetuning.calibration.examples=8"] if name.startswith("grpo") else []
    assert main(["smoke", str(CONFIGS / f"{name}.yml"), "--keep", str(tmp_path), *checked]) == 0
    assert f"kept of {scores}" in capsys.readouterr().out


def test_an_export_that_is_another_model_is_noticed(tmp_path, monkeypatch, capsys):
    from nat_finetune.local import export
    from nat_finetune.local.byte_policy import write_byte_policy

    monkeypatch.setattr(export, "export_merged", lambda policy, folder: write_byte_policy(folder, seed=1))
    assert main(["smoke", str(CONFIGS / "dpo_tic_tac_toe.yml"), "--keep", str(tmp_path)]) == BackendError.exit_code
    assert "the exported model is not the trained one" in capsys.readouterr().err


def test_a_workflow_that_fails_is_the_error_of_the_run(tmp_path, capsys):
    overrides = ["-o", "eval.general.dataset.file_path=nowhere.jsonl"]
    assert main(["smoke", str(CONFIGS / "dpo_tic_tac_toe.yml"), "--keep", str(tmp_path), *overrides]) == 3
    assert "nowhere.jsonl" in capsys.readouterr().err


def test_a_config_without_a_trainer_has_nothing_to_run(tmp_path, capsys):
    config = tmp_path / "config.yml"
    config.write_text("config_version: 1\nllms: {m: {_type: local, model: ./m}}\n")
    assert main(["smoke", str(config)]) == ConfigError.exit_code
    assert "nothing to run" in capsys.readouterr().err
