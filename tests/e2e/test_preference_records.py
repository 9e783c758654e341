"""DPO on a file of reviewers' judgments, through the command line: trained, accounted for, resumed."""

import json

import pytest
import yaml
from safetensors.torch import load_file

from nat_finetune.cli.main import main
from tests.e2e.runs import cli, only_run
from tests.fixtures.models import tiny_model

CONFIG = {
    "config_version": 1,
    "llms": {"policy": {"_type": "local", "model": "./model", "max_tokens": 4}},
    "trajectory_builders": {
        "labels": {"_type": "preference_dataset_builder", "dataset": {"_type": "jsonl", "file_path": "labels.jsonl"}}
    },
    "trainer_adapters": {
        "here": {
            "_type": "local_trainer_adapter",
            "algorithm": {"name": "dpo", "beta": 0.1},
            "learning_rate": 1e-3,
            "epochs": 3,
            "batch_size": 4,
        }
    },
    "trainers": {"once": {"_type": "preference_trainer"}},
    "finetuning": {
        "enabled": True,
        "trajectory_builder": "labels",
        "trainer_adapter": "here",
        "trainer": "once",
        "deterministic": True,
        "output_dir": "runs",
    },
}


def label(number, **changes):
    """A reviewer's record in TRL's conversational format with an explicit prompt: free is better than lose."""
    return {
        "id": f"{number:03}",
        "task_key": f"t{number}",
        "prompt": [{"role": "system", "content": "move"}, {"role": "user", "content": f"board {number}"}],
        "chosen": [{"role": "assistant", "content": "free square"}],
        "rejected": [{"role": "assistant", "content": "lose"}],
        "reviewer": "r1",
        **changes,
    }


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for part in tiny_model("llama"):
        part.save_pretrained(tmp_path / "model")
    write(tmp_path, [label(number) for number in range(8)])
    (tmp_path / "c.yml").write_text(yaml.safe_dump(CONFIG))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder, rows):
    (folder / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def report(folder):
    return json.loads((only_run(folder) / "report.json").read_text())


def test_labels_are_trained_without_a_workflow(folder):
    rows = [label(number) for number in range(8)]
    write(folder, [*rows, label(8, rejected=[{"role": "assistant", "content": "free square"}])])
    done = cli("run", "c.yml")
    assert done.returncode == 0, done.stderr
    found = report(folder)
    (step,) = found["steps"]
    assert step["kept"] == 8
    assert step["dropped"] == {"pair/identical_text": 1}
    assert step["rollouts"] == 0
    assert step["update"]["accuracy"] > 0.5
    assert step["records"]["read"] == 9
    assert found["ledger"]["calls"] == 0
    assert any(line.startswith("9 records were read; the workflow was not run") for line in found["account"])
    assert not any("rollouts" in line for line in found["account"])


def test_a_resumed_run_equals_an_uninterrupted_one(folder):
    killed = cli("run", "c.yml", kill=("nat_finetune.runstore", "RunStore", "save_update", 1))
    assert killed.returncode == -9, killed.stderr
    run = only_run(folder)
    assert cli("run", "--resume", str(run)).returncode == 0
    run.rename(folder / "resumed")
    assert cli("run", "c.yml").returncode == 0
    weights = [load_file(next(f.glob("checkpoints/*/**/*.safetensors"))) for f in (folder / "resumed", only_run(folder))]
    assert weights[0].keys() == weights[1].keys()
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0])
    assert len(json.loads((folder / "resumed" / "report.json").read_text())["steps"]) == 1


def test_bad_records_end_the_run_before_it_trains(folder, capsys):
    write(folder, [label(0), label(1, chosen=[]), label(2), label(3, rejected=None)])
    assert main(["run", "c.yml"]) == 3
    said = capsys.readouterr().err
    assert "trajectory_builders.labels.dataset: 2 of 4 records can't be used" in said
    assert "labels.jsonl:2: 'chosen' is an empty list" in said
    assert "labels.jsonl:4: 'rejected' is null" in said
    assert report(folder)["steps"] == []


def test_bad_records_are_left_out_and_counted_where_the_config_says_so(folder):
    write(folder, [label(0), label(1, chosen=[]), label(2)])
    assert main(["run", "c.yml", "-o", "trajectory_builders.labels.on_bad_record=skip"]) == 0
    found = report(folder)
    assert found["dropped"] == [{"what": "record", "reason": "bad_record", "count": 1}]
    assert any("1 of 3 records can't be used" in warning and "labels.jsonl:2" in warning for warning in found["warnings"])


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("eval.general.dataset={_type: jsonl, file_path: x.jsonl}", "eval.general.dataset: would be ignored"),
        ("trainers.once.num_runs=2", "trainers.once.num_runs: would be ignored"),
        ("finetuning.rollout_retries=2", "finetuning.rollout_retries: would be ignored"),
        ("finetuning.test={dataset: {_type: jsonl, file_path: x.jsonl}}", "workflow: finetuning.test need"),
        ("trainers.once={_type: on_policy_trainer}", "finetuning.trainer: `_type: on_policy_trainer` collects rollouts"),
        ("trajectory_builders.labels.dataset.structure={disable: true}", "dataset.structure: would be ignored"),
    ],
)  # fmt: skip
def test_nothing_that_is_set_is_ignored(folder, capsys, override, said):
    assert main(["validate", "c.yml", "-o", override]) == 2
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("allowed", [False, True])
def test_records_that_leak_into_the_test_set_stop_the_run(folder, allowed):
    held_out = {"id": 5, "question": "board 3", "answer": "", "task_key": "t3"}
    (folder / "test.jsonl").write_text(json.dumps(held_out) + "\n")
    config = {
        **CONFIG,
        "workflow": {"_type": "single_turn", "llm": "policy"},
        "eval": {"evaluators": {"right": {"_type": "exact_match"}}},
    }
    test_set = {"dataset": {"_type": "jsonl", "file_path": "test.jsonl"}}
    config["finetuning"] = {**CONFIG["finetuning"], "test": test_set, "allow_leakage": allowed}
    (folder / "c.yml").write_text(yaml.safe_dump(config))
    code = main(["run", "c.yml"])
    said = report(folder)["warnings" if allowed else "message"]
    said = "\n".join(said) if allowed else said
    assert "labels.jsonl:4 and 5 (finetuning.test.dataset): the same task key 't3'" in said
    assert (code == 3) is not allowed
