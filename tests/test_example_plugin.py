"""A package of one file is installed as a user would, found, checked and trained; README shows that very file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib

import pytest

from tests.source_tree import ROOT

PLUGIN = ROOT / "tests" / "fixtures" / "example_plugin"


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """An environment that sees the plugin, installed by pip into a folder of its own."""
    target = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*pip, "--target", target, PLUGIN], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return os.environ | {"PYTHONPATH": str(target)}


def nat_finetune(environment, *arguments, cwd=ROOT):
    program = [sys.executable, "-c", "import sys; from nat_finetune.cli.main import main; sys.exit(main())"]
    return subprocess.run(
        [*program, *arguments], env=environment, cwd=cwd, capture_output=True, text=True, timeout=280, check=False
    )


def test_list_shows_what_it_brings(environment):
    done = nat_finetune(environment, "list")
    assert done.returncode == 0, done.stderr
    assert {"say_number", "even"} <= set(done.stdout.split())


def test_its_config_is_checked_with_it(environment):
    config = str(PLUGIN / "say_even.yml")
    assert nat_finetune(environment, "validate", config).returncode == 0
    without = nat_finetune({key: value for key, value in environment.items() if key != "PYTHONPATH"}, "validate", config)
    assert without.returncode == 2
    assert "say_number" in without.stdout + without.stderr


def test_it_learns(environment, tmp_path):
    done = nat_finetune(environment, "run", str(PLUGIN / "say_even.yml"), "--output-dir", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(next(tmp_path.glob("*/report.json")).read_text(encoding="utf-8"))
    assert report["exit_reason"] == "improved"
    assert report["metrics"]["even"]["after"]["mean"] > 0.9
    figures = {name for step in report["steps"] for name in step["update"]}
    explained = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    assert {name for name in figures if f"`{name}`" not in explained} == set()
    keys = (ROOT / "docs" / "run-folder.md").read_text(encoding="utf-8")
    assert {key for key in report if f"`{key}" not in keys} == set()
    files = {path.name for path in next(tmp_path.iterdir()).iterdir() if not path.name.startswith(".")}
    assert {name for name in files if f"`{name}" not in keys} == set()


@pytest.mark.parametrize("name", ["say_even.py", "say_even.yml", "pyproject.toml"])
def test_readme_shows_the_very_file(name):
    text = (PLUGIN / name).read_text(encoding="utf-8")
    if name == "pyproject.toml":  # README leaves out what every package has
        point = tomllib.loads(text)["project"]["entry-points"]["nat_finetune.components"]
        text = '[project.entry-points."nat_finetune.components"]\n' + "".join(f'{k} = "{v}"\n' for k, v in point.items())
    assert text.strip() in (ROOT / "README.md").read_text(encoding="utf-8")
