"""README's config is whole and right: it is checked as the command line checks it, beside the shipped ones."""

from __future__ import annotations

import re
import shlex

import pytest
import yaml

from nat_finetune.config.load import load_config
from nat_finetune.registry import Registry
from tests.source_tree import ROOT

WHOLE = [
    text
    for text in re.findall(r"^```yaml\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    if "_type: tic_tac_toe" in text and "finetuning" in yaml.safe_load(text)
]


def test_readme_shows_a_whole_config():
    assert len(WHOLE) == 1


@pytest.mark.parametrize("text", WHOLE, ids=["demo"])
def test_it_is_a_shorter_form_of_the_shipped_one(text, tmp_path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "workflows").symlink_to(ROOT / "workflows")
    shown = tmp_path / "configs" / "readme.yml"
    shown.write_text(text, encoding="utf-8")
    registry = Registry.installed()
    mine = load_config(shown, registry=registry).config
    shipped = load_config(ROOT / "configs" / "grpo_tic_tac_toe.yml", registry=registry).config
    for section in ("llms", "functions", "workflow", "trajectory_builders", "trainer_adapters", "trainers"):
        assert getattr(mine, section) == getattr(shipped, section)
    assert mine.eval.general.max_concurrency == shipped.eval.general.max_concurrency
    keys = {"trajectory_builder", "trainer_adapter", "trainer", "reward_function", "target_functions", "target_model"}
    keys |= {"num_epochs", "examples_per_step", "seed"}
    assert mine.finetuning.model_dump(include=keys) == shipped.finetuning.model_dump(include=keys)


def test_the_dpo_entries_are_those_of_the_shipped_config():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = next(
        data
        for block in re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        if "pairs" in (data := yaml.safe_load(block)).get("trajectory_builders", {})
    )
    shipped = yaml.safe_load((ROOT / "configs" / "dpo_tic_tac_toe.yml").read_text(encoding="utf-8"))
    for section, entries in shown.items():
        for name, entry in entries.items():
            assert entry.items() <= shipped[section][name].items()


def test_its_overrides_lead_somewhere():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = [shlex.split(line) for line in re.findall(r"^nat-finetune run (configs/.* -o .*)$", text, re.MULTILINE)]
    assert commands
    for path, *options in commands:
        given = [value for option, value in zip(options[::2], options[1::2], strict=True) if option == "-o"]
        assert 2 * len(given) == len(options)
        load_config(ROOT / path, given, registry=Registry.installed())
