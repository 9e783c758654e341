"""What users get wrong, through the command line: a message that names it, the documented exit code, nothing lost."""

import json
import os
import re
import signal
import sys

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from nat_finetune.cli.main import main
from tests.e2e.runs import ROOT, cli, only_run
from tests.fixtures.models import tiny_model

CONFIG = {
    "config_version": 1,
    "llms": {"policy": {"_type": "local", "model": "./model", "max_tokens": 4}},
    "workflow": {"_type": "breaking", "llm": "policy"},
    "eval": {
        "general": {"dataset": {"_type": "jsonl", "file_path": "train.jsonl"}},
        "evaluators": {"score": {"_type": "breaking"}},
    },
    "trajectory_builders": {"groups": {"_type": "grpo_traj_builder", "num_generations": 4}},
    "trainer_adapters": {"here": {"_type": "local_trainer_adapter", "algorithm": {"name": "grpo"}, "learning_rate": 1e-3}},
    "trainers": {"fresh": {"_type": "on_policy_trainer"}},
    "finetuning": {
        "enabled": True,
        "trajectory_builder": "groups",
        "trainer_adapter": "here",
        "trainer": "fresh",
        "reward_function": {"name": "score"},
        "num_epochs": 1,
        "examples_per_step": 3,
        "rollout_timeout_seconds": 5,
        "test": {"dataset": {"_type": "jsonl", "file_path": "test.jsonl"}},
        "output_dir": "runs",
    },
}


NOUNS = {
    "train": ("house", "river", "cloud", "engine", "ladder", "basket"),
    "test": ("mirror", "prophet", "gallop", "winter", "jacket", "violin"),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A sound config with its data and model, and the plugin of `tests/fixtures/breaking_plugin` as if installed."""
    model, tokenizer = tiny_model("llama")
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "model")
    for name, nouns in NOUNS.items():  # no two questions are near-duplicates
        lines = [json.dumps({"id": f"{name}{n}", "question": f"{noun} {noun[::-1]}"}) + "\n" for n, noun in enumerate(nouns)]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    (tmp_path / "c.yml").write_text(yaml.safe_dump(CONFIG))
    installed = tmp_path / "site" / "breaking-1.2.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: breaking\nVersion: 1.2\n")
    (installed / "entry_points.txt").write_text("[nat_finetune.components]\nbreaking = breaking\n")
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "fixtures" / "breaking_plugin"))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)  # main() replaces it
    monkeypatch.chdir(tmp_path)
    on_ctrl_c = signal.getsignal(signal.SIGINT)
    yield tmp_path
    signal.signal(signal.SIGINT, on_ctrl_c)  # a stopped run ignores it from then on


def run(*overrides):
    """`nat-finetune run c.yml -o ...` in this process: its exit code."""
    return main(["run", "c.yml", *(part for override in overrides for part in ("-o", override))])


def report(folder):
    return json.loads((only_run(folder) / "report.json").read_text())


@pytest.mark.parametrize(
    ("override", "code", "said"),
    [
        ("workflow.mode=factory", 2, "breaking.breaking (breaking 1.2) could not be made: RuntimeError: no connection"),
        ("workflow={_type: no_generator}", 2, "breaking.no_generator (breaking 1.2) is no async generator"),
        ("workflow.mode=raises", 5, "6 x in workflow: KeyError: 'board'"),
        ("workflow.mode=exits", 5, "6 x in workflow: SystemExit: 3"),
        ("workflow.mode=cancelled", 5, "6 x in workflow: CancelledError: cancelled from inside"),
        ("eval.evaluators.score.mode=raises", 4, "failed 12 times, such as: ZeroDivisionError: evaluator score: no games"),
        ("eval.evaluators.score.mode=nan", 4, "expected a finite number"),
        ("eval.evaluators.score.mode=text", 4, "found '0.5'"),
        ("eval.evaluators.score.mode=huge", 4, "expected a finite number (of at most 1e+18)"),
        ("eval.evaluators.score.mode=constant", 4, "score is 1 for all 12 scored rollouts of the last step"),
    ],
)  # fmt: skip
def test_components_that_fail_end_the_run_with_a_report(folder, capsys, override, code, said):
    assert run(override) == code
    printed = capsys.readouterr().err
    assert said in printed
    assert "Traceback" not in printed
    assert report(folder)["exit_code"] == code
    assert said.split("\n")[0] in report(folder)["message"]


def test_what_a_failed_step_cost_is_in_the_ledger(folder, capsys):
    assert run("eval.evaluators.score.mode=constant") == 4
    ledger = report(folder)["ledger"]
    assert {row["reason"] for row in ledger["rows"]} == {"context", "zero_advantage", "unfinished"}
    assert ledger["calls"] == (only_run(folder) / "events.jsonl").read_text().count('"model_call"')
    assert ledger["calls"] == 24  # two steps of 12 rollouts without signal


def test_rollouts_that_failed_are_run_anew_once_what_failed_is_mended(folder, capsys):
    assert run("workflow.mode=raises", "finetuning.test=null") == 5
    assert "12 of 12 rollouts failed, more than finetuning.max_failure_rate = 0.1 allows" in capsys.readouterr().err
    made = only_run(folder)
    (made / "config.yml").write_text((made / "config.yml").read_text().replace("mode: raises", "mode: sound"))
    assert main(["run", "--resume", str(made)]) == 0
    assert report(folder)["steps"][0]["failed"]["infrastructure"] == 0
    assert main(["export-data", str(made), "--format", "trl", "--items", "rollouts", "--validation-share", "0"]) == 0


def test_an_evaluation_of_which_every_rollout_fails_measures_nothing_and_ends_the_run(folder, capsys):
    assert run("workflow.mode=raises") == 5
    assert "all 6 rollouts of the test set failed" in capsys.readouterr().err
    made = only_run(folder)
    (made / "config.yml").write_text((made / "config.yml").read_text().replace("mode: raises", "mode: sound"))
    assert main(["run", "--resume", str(made)]) == 0
    assert report(folder)["metrics"]["score"]["gain"]["n"] == 6
    assert main(["eval", str(made), "-o", "workflow.mode=raises"]) == 5


def test_an_evaluation_of_which_some_rollouts_fail_leaves_these_out(folder):
    assert run("workflow.mode=raises_now_and_then") == 0
    assert report(folder)["metrics"]["score"]["after"]["n"] == 5


@pytest.mark.parametrize(("key", "code"), [("workflow.mode", 5), ("eval.evaluators.score.mode", 4)])
def test_what_hangs_is_given_up(folder, capsys, key, code):
    assert run(f"{key}=hangs", "finetuning.rollout_timeout_seconds=0.1") == code
    assert "took longer than finetuning.rollout_timeout_seconds = 0.1" in capsys.readouterr().err


def test_an_output_of_any_kind_is_kept_as_text(folder):
    assert run("workflow.mode=odd_output") == 0
    assert r"half a pair: \\ud800" in (only_run(folder) / "events.jsonl").read_text()
    exported = ["export-data", str(only_run(folder)), "--format", "trl", "--items", "rollouts", "--validation-share", "0"]
    assert main(exported) == 0  # it can be read again


def test_synthetic_scores_do_not_hide_an_evaluator_that_only_fails(folder, capsys):
    assert main(["smoke", "c.yml", "-o", "eval.evaluators.score.mode=raises"]) == 4
    assert "such as: ZeroDivisionError: evaluator score: no games" in capsys.readouterr().err


def test_smoke_names_an_evaluator_that_gives_no_score(folder, capsys):
    assert main(["smoke", "c.yml", "-o", "eval.evaluators.score.mode=silent"]) == 0
    assert "no rollout got a score of score: see that a real answer does" in capsys.readouterr().out
    assert main(["smoke", "c.yml"]) == 0
    assert "got a score" not in capsys.readouterr().out


def test_runs_give_each_metric_a_line(folder, capsys):
    assert run() == 0
    capsys.readouterr()
    assert main(["runs"]) == 0
    head, line, *_ = capsys.readouterr().out.splitlines()
    assert head.startswith(f"{only_run(folder).name}: ")
    assert re.fullmatch(r"  score  \d\.\d{3} → \d\.\d{3}  [+-]\d\.\d{3} \[.*\]", line)


def test_a_clean_up_that_fails_loses_nothing(folder, capsys):
    assert run("workflow.mode=clean_up") == 2
    assert "failed when it cleaned up: RuntimeError: no connection" in capsys.readouterr().err
    assert report(folder)["metrics"]["score"]["after"] is not None
    assert main(["export", str(only_run(folder)), "trained"]) == 0
    assert (folder / "trained" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda weights: weights.pop("model.norm.weight"), "model.norm.weight"),
        (lambda weights: weights.update({"model.norm.weight": torch.ones(3)}), "model.norm.weight ("),
    ],
    ids=["missing", "other-shape"],
)  # fmt: skip
def test_weights_are_never_made_up(folder, capsys, change, said):
    path = folder / "model" / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path, {"format": "pt"})
    assert run() == 6
    assert (
        f"lack 1 of the weights that its config.json calls for, or hold them in another shape: {said}"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("override", "code", "said"),
    [
        ("llms.policy.temperature=0", 2, "llms.policy.temperature"),
        ("llms.policy.model=./nothing", 2, "there is no such folder"),
        ("trainer_adapters.here.lora={rank: 2, target_modules: [nope]}", 2, "'nope'"),
        ("finetuning.test.dataset.file_path=train.jsonl", 3, "6 held-out examples leak"),
        ("finetuning.output_dir=c.yml", 8, "Not a directory"),
    ],
)
def test_what_can_be_known_beforehand_costs_no_rollout(folder, capsys, override, code, said):
    assert run(override) == code
    assert said in capsys.readouterr().err
    assert not list(folder.glob("runs/*/evaluations"))


def test_a_damaged_run_folder_is_named_and_left_alone(folder, capsys):
    assert run() == 0
    state = only_run(folder) / "state.json"
    state.write_text('{"steps_done": 2, "fin')
    before = {path: path.read_bytes() for path in only_run(folder).rglob("*") if path.is_file()}
    for command in (["run", "--resume"], ["eval"]):
        assert main([*command, str(only_run(folder))]) == 8
        assert f"{state} is not what nat-finetune wrote" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in only_run(folder).rglob("*") if path.is_file()} == before


@pytest.fixture
def _ctrl_c_is_heard():
    """A process that a shell starts in the background has SIGINT ignored, tests included; Python then leaves it so."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ctrl_c_is_heard")
def test_ctrl_c_says_how_to_go_on_and_the_run_goes_on(folder, capsys):
    assert run("workflow.mode=interrupted") == 130
    (command,) = re.findall(r"Go on with: nat-finetune (.*)", capsys.readouterr().err)
    config = only_run(folder) / "config.yml"
    config.write_text(config.read_text().replace("interrupted", "sound"))
    assert main(command.split()) == 0


def test_secrets_are_in_no_file_and_no_error(folder, capsys, monkeypatch):
    monkeypatch.setenv("BREAKING_KEY", "hush-4711")
    run("workflow.mode=raises", "workflow.api_key=${BREAKING_KEY}")
    run("workflow.api_key=${BREAKING_KEY}", "finetuning.num_epochs=none")
    run("workflow.api_key=${BREAKING_KEY}", "workflow.mode=[]")
    told = capsys.readouterr()
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert "hush-4711" not in told.out + told.err
    assert [path for path in files if b"hush-4711" in path.read_bytes()] == []


def test_a_file_in_the_way_of_an_export_stays(folder, capsys):
    assert run() == 0
    (folder / "taken").write_text("mine")
    for place in ("taken", "taken/below"):
        assert main(["export", str(only_run(folder)), place]) == 8
    assert (folder / "taken").read_text() == "mine"


def test_a_full_disk_keeps_what_was_finished(folder, monkeypatch):
    """A file size limit stands in for the disk: the checkpoint does not fit, what is smaller does."""
    import resource

    limit = (150_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    plugin = [str(folder / "site"), str(ROOT / "tests" / "fixtures" / "breaking_plugin")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *plugin]))
    full = cli("run", "c.yml", before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
    assert (full.returncode, full.stdout.count("Traceback")) == (8, 0), full.stderr
    assert "continue with --resume" in full.stderr
    assert main(["run", "--resume", str(only_run(folder))]) == 0


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("[" * 100_000 + "]" * 100_000, "train.jsonl:1: nested too deeply"),
        ("9" * 5000, "train.jsonl:1: a whole number of more than 4300 digits"),
        (r'"\ud800"', "train.jsonl:1: holds half of a surrogate pair"),
    ],
    ids=["deep", "long-number", "half-a-pair"],
)
def test_json_that_python_can_not_hold_is_an_error_of_the_data(folder, capsys, question, said):
    (folder / "train.jsonl").write_text(f'{{"id": 1, "question": {question}}}\n')
    assert run() == 3
    assert said in capsys.readouterr().err
