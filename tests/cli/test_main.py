"""The command line as a user runs it: what it says, where, and the code it ends with."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from nat_finetune import __version__, errors
from nat_finetune.cli import main as command_line
from nat_finetune.cli.main import app, main

GOOD = "config_version: 1\ntrainers: {fresh: {_type: on_policy_trainer}}\n"
BAD = "trainers: {fresh: {_type: on_policy_trainr}}\nfinetuning: {sed: 1}\n"


@pytest.fixture(autouse=True)
def _hook(monkeypatch):
    """`main` sets `sys.excepthook`, for the process; not for the rest of the tests."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)


@pytest.fixture
def configs(tmp_path):
    for name, text in (("good.yml", GOOD), ("bad.yml", BAD)):
        (tmp_path / name).write_text(text)
    return tmp_path


def process(*arguments, program="from nat_finetune.cli.main import main", env=None):
    command = [sys.executable, "-c", f"import sys\n{program}\nsys.exit(main())", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)


# -------------------------------------------------------------------------------------------------------------- validate


def test_validate_a_right_config(configs, capsys):
    assert main(["validate", str(configs / "good.yml")]) == 0
    assert capsys.readouterr().out == f"{configs}/good.yml: ok\n"


def test_validate_several_files_says_all_that_is_wrong(configs, capsys):
    assert main(["validate", str(configs / "good.yml"), str(configs / "bad.yml"), str(configs / "no.yml")]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{configs}/good.yml: ok"
    assert lines[1].startswith(f"{configs}/bad.yml:1:27: trainers.fresh._type: no component of trainers has the _type")
    assert lines[2] == f"{configs}/bad.yml:2:14: finetuning.sed: unknown key 'sed' (did you mean 'seed'?)"
    assert lines[3] == f"{configs}/bad.yml: 2 problems"
    assert lines[4].endswith(f"there is no file {configs}/no.yml")
    assert lines[5] == f"{configs}/no.yml: 1 problem"


def test_a_lock_that_a_pattern_names_too_is_no_config(configs, capsys):
    lock = configs / "good.lock.yml"
    lock.write_text("lock_version: 1\n")
    assert main(["validate", str(configs / "good.yml"), str(lock)]) == 0
    assert "a lock, not a config" in capsys.readouterr().out


def test_validate_as_json(configs, capsys):
    assert main(["validate", "--format", "json", str(configs / "good.yml"), str(configs / "bad.yml")]) == 2
    said = json.loads(capsys.readouterr().out)
    assert said["ok"] is False
    assert [(file["ok"], len(file["problems"])) for file in said["files"]] == [(True, 0), (False, 2)]
    assert said["files"][1]["problems"][1] == {
        "message": "unknown key 'sed'",
        "key": "finetuning.sed",
        "file": str(configs / "bad.yml"),
        "line": 2,
        "column": 14,
        "hint": "did you mean 'seed'?",
    }


def test_validate_takes_overrides_in_both_forms(configs, capsys):
    path = str(configs / "good.yml")
    assert main(["validate", path, "-o", "finetuning.seed=3", "-o", "finetuning.num_epochs", "2"]) == 0
    assert main(["validate", path, "-o", "finetuning.sed", "3"]) == 2
    assert "-o finetuning.sed=3: finetuning.sed: unknown key 'sed'" in capsys.readouterr().out


def test_validate_notes_a_missing_version(configs, capsys):
    (configs / "nat.yml").write_text("finetuning: {}\n")
    assert main(["validate", str(configs / "nat.yml")]) == 0
    assert "nat.yml: note: config_version is absent" in capsys.readouterr().out


def test_validate_notes_a_backend_that_is_not_on_this_machine(configs, capsys):
    shipped = Path(__file__).parents[2] / "configs" / "dpo_tic_tac_toe_nemo_rl.yml"
    assert main(["validate", str(shipped), "-o", f"trainer_adapters.cluster.checkout={configs}"]) == 0
    assert f"note: trainer_adapters.cluster.checkout: {configs}/examples: no such folder" in capsys.readouterr().out
    (configs / "examples").mkdir()
    assert main(["validate", str(shipped), "-o", f"trainer_adapters.cluster.checkout={configs}"]) == 0
    assert "note" not in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------------------------ list


def test_list_by_kind(capsys):
    assert main(["list", "--kind", "trainers"]) == 0
    out = capsys.readouterr().out
    assert re.search(rf"^trainers\n(?:  .*\n)*  on_policy_trainer +v1 +nat-finetune {__version__} +Collect", out)
    assert "datasets" not in out


def test_list_as_json(capsys):
    assert main(["list", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    (jsonl,) = [component for component in said["components"] if component["name"] == "jsonl"]
    assert jsonl == {
        "kind": "datasets",
        "name": "jsonl",
        "version": 1,
        "origin": f"nat-finetune {__version__}",
        "summary": "Examples from a file with one JSON object a line.",
    }


# ------------------------------------------------------------------------------------------------------------ how it ends


@pytest.fixture
def failing(monkeypatch):
    """A command line with one command, `fail`, that raises what it is given."""

    def make(error):
        broken = typer.Typer(pretty_exceptions_enable=False)
        broken.callback()(lambda: None)

        @broken.command("fail")
        def fail() -> None:
            raise error

        monkeypatch.setattr(command_line, "app", broken)

    return make


def leaves(kind):
    return [leaf for child in kind.__subclasses__() for leaf in [child, *leaves(child)]]


@pytest.mark.parametrize("kind", leaves(errors.NatFinetuneError), ids=lambda kind: kind.__name__)
def test_every_error_is_a_message_and_its_code(failing, capsys, kind):
    failing(kind("what happened"))
    assert main(["fail"]) == kind.exit_code
    assert capsys.readouterr().err == "nat-finetune: what happened\n"


def test_several_problems_stand_one_a_line(failing, capsys):
    failing(errors.ConfigError([errors.Problem("a", file="f", line=1), errors.Problem("b")]))
    assert main(["fail"]) == 2
    assert capsys.readouterr().err == "nat-finetune: 2 problems\n  f:1: a\n  b\n"


def test_debug_shows_the_traceback(failing, capsys):
    failing(errors.DataError("what happened"))
    assert main(["fail", "--debug"]) == 3
    said = capsys.readouterr().err
    assert "Traceback (most recent call last)" in said
    assert said.endswith("nat-finetune: what happened\n")


def test_control_c(failing):
    failing(KeyboardInterrupt())
    assert main(["fail"]) == 130


@pytest.mark.parametrize("arguments", [["validat"], ["validate"], ["validate", "--format", "xml", "a"], ["list", "--kid"]])
def test_a_wrong_command_line_ends_with_2(arguments, capsys):
    assert main(arguments) == 2
    assert "Usage: nat-finetune" in capsys.readouterr().err


BUG = """
from nat_finetune.cli import list
def list_components():
    raise ZeroDivisionError("a bug")
list.list_components = list_components
from nat_finetune.cli.main import main
"""


def test_a_bug_is_a_short_message_and_a_traceback_in_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = process("list", program=BUG)
    assert done.returncode == 1
    assert done.stderr.startswith("nat-finetune: internal error: ZeroDivisionError: a bug\n")
    assert "Traceback" not in done.stderr
    (kept,) = tmp_path.glob("nat-finetune-error-*.txt")
    assert str(kept) in done.stderr
    assert "in list_components" in kept.read_text()
    assert f"nat-finetune {__version__}" in kept.read_text()


def test_a_bug_with_debug_shows_the_traceback(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = process("list", "--debug", program=BUG)
    assert done.returncode == 1
    assert "in list_components" in done.stderr
    assert list(tmp_path.iterdir()) == []


# --------------------------------------------------------------------------------------------------------------- startup


def test_version():
    done = process("--version")
    assert (done.returncode, done.stdout) == (0, f"nat-finetune {__version__}\n")


def test_help_names_every_command_and_exit_code(capsys):
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    for command in app.registered_commands:
        assert re.search(rf"^  {command.name} ", said, re.MULTILINE)
    codes = {kind.exit_code for kind in leaves(errors.NatFinetuneError)}
    assert codes <= {int(number) for number in re.findall(r"\b(\d+)\s+[a-z]", said.split("Exit codes")[1])}


@pytest.mark.parametrize("arguments", [["--help"], ["list"], ["validate", "{good}"], ["run", "--help"]], ids=lambda a: a[0])
def test_nothing_heavy_is_imported(configs, arguments):
    program = (
        "from nat_finetune.cli import main as m\n"
        "def main():\n"
        "    code = m.main()\n"
        "    heavy = sorted({'torch', 'transformers', 'peft', 'numpy', 'httpx', 'rich'} & set(sys.modules))\n"
        "    print('HEAVY', heavy)\n"
        "    return code"
    )
    done = process(*(a.format(good=configs / "good.yml") for a in arguments), program=program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("HEAVY []\n")


def test_the_console_script_is_installed():
    script = Path(sys.executable).with_name("nat-finetune")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == f"nat-finetune {__version__}\n"
