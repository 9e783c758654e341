"""Components by name: marking, collecting, duplicates, near misses, and plugins that don't import."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest

from nat_finetune.config.component import EvaluatorBaseConfig, FunctionBaseConfig, TrainerConfig
from nat_finetune.errors import ConfigError
from nat_finetune.registry import Kind, Registry, register_evaluator, register_function, register_trainer
from tests.source_tree import ROOT


def module_with(name, **factories):
    made = ModuleType(name)
    vars(made).update(factories)
    return made


def evaluator(type_name):
    class Config(EvaluatorBaseConfig, name=type_name):
        """Scores."""

    @register_evaluator(config_type=Config)
    async def factory(config, builder):
        yield config

    return factory


def test_a_module_brings_every_marked_factory_of_its_namespace():
    registry = Registry()
    registry.add_module(module_with("m", a=evaluator("a"), b=evaluator("b"), c=len, d=3), origin="m 1.0")
    assert [(r.kind, r.name, r.origin, r.summary) for r in registry] == [
        (Kind.EVALUATOR, "a", "m 1.0", "Scores."),
        (Kind.EVALUATOR, "b", "m 1.0", "Scores."),
    ]
    assert registry.get(Kind.EVALUATOR, "a").config_type.component_name == "a"


def test_one_factory_seen_from_two_modules_is_one_component():
    registry, shared = Registry(), evaluator("a")
    for name in ("m", "n"):
        registry.add_module(module_with(name, a=shared), origin=name)
    assert registry.names(Kind.EVALUATOR) == ["a"]


def test_two_components_of_one_name_are_refused_naming_both():
    registry = Registry()
    registry.add_module(module_with("m", a=evaluator("same")), origin="first 1.0")
    with pytest.raises(ConfigError, match=r"named 'same': .*\(first 1.0\) and .*\(second 2.0\); rename one or uninstall"):
        registry.add_module(module_with("n", a=evaluator("same")), origin="second 2.0")


def test_one_name_in_two_kinds_is_no_conflict():
    class Config(FunctionBaseConfig, name="same"):
        """Runs."""

    @register_function(config_type=Config)
    async def factory(config, builder):
        yield config

    registry = Registry()
    registry.add_module(module_with("m", a=evaluator("same"), b=factory), origin="m")
    assert registry.get(Kind.FUNCTION, "same").config_type is Config


@pytest.mark.parametrize(
    ("name", "hint"),
    [("outcom", "did you mean 'outcome'?"), ("xyz", "known: outcome"), ("some_package/outcome", "did you mean 'outcome'?")],
)
def test_a_name_that_is_not_there(name, hint):
    registry = Registry()
    registry.add_module(module_with("m", a=evaluator("outcome")), origin="m")
    with pytest.raises(ConfigError) as caught:
        registry.get(Kind.EVALUATOR, name)
    assert caught.value.problems[0].hint == hint
    assert f"no component of evaluators has the _type {name!r}" in caught.value.problems[0].message


def test_a_config_of_another_kind_is_refused_where_it_is_marked():
    with pytest.raises(TypeError, match="config_type must be a subclass of TrainerConfig"):
        register_trainer(config_type=EvaluatorBaseConfig)


def test_a_config_without_a_name_is_refused_where_it_is_marked():
    class Nameless(TrainerConfig):
        """No name."""

    with pytest.raises(TypeError, match="Nameless has no name: write `class Nameless"):
        register_trainer(config_type=Nameless)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise ValueError('at import')", "ValueError: at import"),
        ("import no_such_module_at_all", "ModuleNotFoundError: No module named 'no_such_module_at_all'"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("def f(:", "SyntaxError"),
    ],
)
def test_a_plugin_that_does_not_import_stops_nothing_and_is_shown_where_asked_for(tmp_path, monkeypatch, body, reason):
    (tmp_path / "bad_plugin_module.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    registry = Registry()
    registry.add_module(module_with("m", a=evaluator("a")), origin="m")
    registry.add_plugins([EntryPoint("bad", "bad_plugin_module", "nat_finetune.components")])
    assert registry.get(Kind.EVALUATOR, "a").name == "a"
    assert reason in registry.broken[0].reason
    with pytest.raises(ConfigError) as caught:
        registry.get(Kind.EVALUATOR, "theirs")
    message = caught.value.problems[0].message
    assert "the plugin bad = bad_plugin_module" in message
    assert "Traceback (most recent call last)" in message
    assert reason in message


@pytest.fixture(scope="module")
def broken_environment(tmp_path_factory):
    """An environment with a plugin, installed by pip, whose dependency is missing."""
    target = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    source = ROOT / "tests" / "fixtures" / "broken_plugin"  # copied: pip leaves build/ behind
    plugin = shutil.copytree(
        source, tmp_path_factory.mktemp("source") / "plugin", ignore=shutil.ignore_patterns("build", "*.egg-info")
    )
    done = subprocess.run([*pip, "--target", target, plugin], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return os.environ | {"PYTHONPATH": str(target)}


def nat_finetune(environment, *arguments):
    command = [sys.executable, "-m", "nat_finetune.cli.main", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_list_shows_a_broken_plugin_as_broken(broken_environment):
    done = nat_finetune(broken_environment, "list")
    assert done.returncode == 0, done.stderr
    assert "on_policy_trainer" in done.stdout
    assert "BROKEN  broken = broken_plugin (broken-plugin 2.5.0): ModuleNotFoundError: No module named" in done.stdout
    (broken,) = json.loads(nat_finetune(broken_environment, "list", "--json").stdout)["broken"]
    assert "import a_package_that_nobody_has" in broken["traceback"]


def test_validate_shows_its_traceback_where_its_component_is_asked_for(broken_environment, tmp_path):
    config = tmp_path / "c.yml"
    config.write_text("config_version: 1\nworkflow: {_type: theirs}\n")
    done = nat_finetune(broken_environment, "validate", str(config))
    assert done.returncode == 2
    assert f"{config}:2:19: workflow._type: no component of functions has the _type 'theirs'" in done.stdout
    assert "import a_package_that_nobody_has" in done.stdout
    config.write_text("config_version: 1\ntrainers: {t: {_type: on_policy_trainer}}\n")
    assert nat_finetune(broken_environment, "validate", str(config)).returncode == 0
