"""What CI systems read: the forms, and the Action's own steps."""

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from nat_finetune.cli.findings import github, junit, sarif
from nat_finetune.cli.main import main
from nat_finetune.errors import Problem
from tests.source_tree import ROOT

ACTION = ROOT / ".github" / "actions" / "validate" / "action.yml"
PROBLEM = Problem("50 % of\nwhat: it should be", "finetuning.seed", "a,b.yml", 3, 5, "write 1")
BAD = "config_version: 1\nfinetuning:\n  sed: 1\n"
GOOD = "config_version: 1\nfinetuning:\n  seed: ${SEED}\n"


@pytest.fixture
def configs(tmp_path):
    for name, text in (("good.yml", GOOD), ("bad.yml", BAD)):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_github_annotations_are_escaped():
    assert github({"a,b.yml": [PROBLEM], "fine.yml": []}) == (
        "::error file=a%2Cb.yml,line=3,col=5,title=finetuning.seed::finetuning.seed: 50 %25 of%0Awhat: it should be (write 1)"
    )


def test_a_problem_of_an_override_stands_at_the_config():
    problem = Problem("no such place", "finetuning.sed", "-o finetuning.sed=1")
    assert github({"a.yml": [problem]}).startswith("::error file=a.yml,title=")


def test_sarif():
    (run,) = json.loads(sarif({"a,b.yml": [PROBLEM], "fine.yml": []}))["runs"]
    (result,) = run["results"]
    place = result["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "a,b.yml"}, "region": {"startLine": 3, "startColumn": 5}}
    assert result["ruleId"] in {rule["id"] for rule in run["tool"]["driver"]["rules"]}


def test_junit():
    suite = ElementTree.fromstring(junit({"a.yml": [PROBLEM], "fine.yml": []}))
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert "50 % of" in suite.find("testcase[@name='a.yml']/failure").text
    assert suite.find("testcase[@name='fine.yml']/failure") is None


@pytest.mark.parametrize("form", ["sarif", "github", "junit", "json"])
def test_validate_in_each_form(configs, capsys, form):
    assert main(["validate", "--format", form, str(configs / "bad.yml")]) == 2
    assert "sed" in capsys.readouterr().out


def test_declared_variables_are_present(configs, capsys, monkeypatch):
    monkeypatch.delenv("SEED", raising=False)
    good = str(configs / "good.yml")
    assert main(["validate", good]) == 2
    assert main(["validate", good, "--env", "SEED=3"]) == 0
    assert main(["validate", good, "--env", "2SEED"]) == 2
    assert "--env takes" in capsys.readouterr().err


def action_step(name, **environment):
    """Run one step of the Action as its runner would; expressions are in `env` only, which is given here."""
    (step,) = [step for step in yaml.safe_load(ACTION.read_text())["runs"]["steps"] if step["name"] == name]
    assert set(step["env"]) == set(environment)
    assert "${{" not in step["run"]
    environment = {**os.environ, **environment, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        capture_output=True, text=True, check=False, timeout=60, env=environment,
    )  # fmt: skip


@pytest.mark.parametrize(("files", "code"), [("good.yml", 0), ("good.yml bad.yml", 2)])
def test_the_step_of_the_action(configs, files, code):
    paths = " ".join(str(configs / name) for name in files.split())
    done = action_step("Validate", CONFIGS=paths, LOCKED="false", NAMES="SEED=3")
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout.count("::error ") == code // 2


def test_the_action_can_be_told_to_hold_to_the_lock(configs):
    done = action_step("Validate", CONFIGS=str(configs / "good.yml"), LOCKED="true", NAMES="SEED=3")
    assert done.returncode == 2
    assert "there is no lock" in done.stdout
