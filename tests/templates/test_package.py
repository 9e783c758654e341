"""`nat-finetune new`: every kind of package is whole, passes its own test, and its config; a bad name writes nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nat_finetune.cli.main import main
from nat_finetune.errors import OutputError
from nat_finetune.registry import Registry
from nat_finetune.templates.package import Plugin, write_package
from tests.source_tree import ROOT


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder with a package of every kind, and an environment that has them all, installed by pip."""
    folder = tmp_path_factory.mktemp("packages")
    registry = Registry.installed()
    for plugin in Plugin:
        write_package(plugin, f"my_{plugin}", folder / f"my_{plugin}", registry)
    target = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    packages = [str(folder / f"my_{plugin}") for plugin in Plugin]
    done = subprocess.run([*pip, "--target", target, *packages], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return folder, os.environ | {"PYTHONPATH": str(target)}


def run(written, plugin, *arguments):
    folder, environment = written
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=folder / f"my_{plugin}", env=environment, capture_output=True, text=True, timeout=280, check=False
    )


def nat_finetune(written, plugin, *arguments):
    return run(written, plugin, "-m", "nat_finetune.cli.main", *arguments)


def test_they_are_listed_and_their_configs_are_right(written):
    folder, _ = written
    listed = nat_finetune(written, Plugin.WORKFLOW, "list").stdout
    assert [plugin for plugin in Plugin if f"  my_{plugin} " not in listed] == []
    done = nat_finetune(written, Plugin.WORKFLOW, "validate", *(str(folder / f"my_{p}" / f"my_{p}.yml") for p in Plugin))
    assert done.returncode == 0, done.stdout


QUICK = [p if p is not Plugin.ADAPTER else pytest.param(p, marks=pytest.mark.slow) for p in Plugin]
"""The adapter's own test trains a model."""


@pytest.mark.parametrize("plugin", QUICK)
def test_its_own_test_passes(written, plugin):
    done = run(written, plugin, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "-o", "addopts=")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("plugin", list(Plugin))
def test_its_config_passes_smoke_and_learns(written, plugin, tmp_path):
    smoked = nat_finetune(written, plugin, "smoke", f"my_{plugin}.yml")
    assert smoked.returncode == 0, smoked.stdout + smoked.stderr
    trained = nat_finetune(written, plugin, "run", f"my_{plugin}.yml", "--output-dir", str(tmp_path))
    assert trained.returncode == 0, trained.stdout + trained.stderr
    assert "improved: even" in trained.stdout


@pytest.mark.parametrize("plugin", list(Plugin))
def test_it_is_formatted_and_needs_no_mending(written, plugin):
    folder, _ = written
    for command in (["check", "--select", "E,F,W,UP,B", "--line-length", "128"], ["format", "--check", "--line-length", "128"]):
        ruff = [str(Path(sys.executable).with_name("ruff")), *command, "--isolated", str(folder / f"my_{plugin}")]
        done = subprocess.run(ruff, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout


def test_the_command_says_what_it_wrote_and_what_comes_next(tmp_path, capsys):
    assert main(["new", "evaluator", "brevity", "--output", str(tmp_path / "made")]) == 0
    said = capsys.readouterr().out
    files = sorted(path.name for path in (tmp_path / "made").iterdir())
    assert files == ["README.md", "brevity.py", "brevity.yml", "pyproject.toml", "test.jsonl", "test_brevity.py", "train.jsonl"]
    assert all(name in said for name in files)
    assert "nat-finetune smoke brevity.yml" in said
    texts = "".join(path.read_text(encoding="utf-8") for path in (tmp_path / "made").iterdir())
    assert [place for place in ("@name@", "@Class@", "@dist@", "@what@") if place in texts] == []


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("My-Workflow", r"'My-Workflow' can't be a module's.*such as 'my_workflow'"),
        ("1st", "can't be a module's"),
        ("class", "can't be a module's"),
        ("match", "can't be a module's"),
        ("../up", "can't be a module's"),
        ("", "can't be a module's"),
        ("json", "a module 'json' can be imported here already"),
    ],
)
def test_a_name_that_can_not_be_is_refused(tmp_path, monkeypatch, capsys, name, says):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "workflow", name]) == 2
    assert re.search(says, capsys.readouterr().err)
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_a_component_has_is_refused_with_its_place(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "trainer", "on_policy_trainer"]) == 2
    assert "named 'on_policy_trainer' already: nat_finetune.trainers.on_policy" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_exists_is_left_as_it_is(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    assert main(["new", "workflow", "mine"]) == 8
    assert "exists; give a folder that does not" in capsys.readouterr().err
    assert list((tmp_path / "mine").iterdir()) == []


def test_what_can_not_be_written_leaves_nothing(tmp_path, monkeypatch):
    calls = []
    original = Path.write_text

    def full(self, *arguments, **options):
        calls.append(self)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        return original(self, *arguments, **options)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OutputError, match="No space left on device; give another folder"):
        write_package(Plugin.TRAINER, "mine", tmp_path / "mine", Registry.installed())
    assert list(tmp_path.iterdir()) == []


def test_no_template_is_forgotten():
    names = {path.name for path in (ROOT / "nat_finetune" / "templates").glob("*.tmpl")}
    shared = {"pyproject.toml", "README.md", "train.jsonl", "test.jsonl"}
    each = {f"{plugin}{ending}" for plugin in Plugin for ending in (".py", ".yml", "_test.py")}
    assert names == {f"{name}.tmpl" for name in shared | each}
