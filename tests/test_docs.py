"""README and docs say what is true: links, names, keys, commands and exit codes are held against the code."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest
import yaml

from nat_finetune import errors
from nat_finetune.algorithms.presets import PRESETS, Preset
from nat_finetune.config.component import Section
from nat_finetune.config.shape import spellings
from nat_finetune.registry import Registry
from nat_finetune.types import DropReason
from tests.source_tree import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page, language):
    return [text for found, text in FENCE.findall(page.read_text(encoding="utf-8")) if found == language]


def page_named(name):
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    missing = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_exist(page):
    targets = set(re.findall(r"^([\w-]+):", page_named("Makefile"), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([\w-]+)", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert named - targets == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist(page):
    import typer.main

    from nat_finetune.cli.main import app

    commands = set(typer.main.get_command(app).commands)
    text = page.read_text(encoding="utf-8")
    in_fences = "\n".join(block for _, block in FENCE.findall(text))
    named = set(re.findall(r"^(?:\S*/)?nat-finetune (\w[\w-]*)", in_fences, re.MULTILINE)) | set(
        re.findall(r"`nat-finetune (\w[\w-]*)", text)
    )
    assert named - commands == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_yaml_names_components_that_exist(page):
    registry = Registry.installed()
    known = {registration.name for registration in registry} | {
        "say_number",
        "even",
        "greeter",
        "seats",
        "near_the_middle",
    }  # the examples' own
    named = {name for text in blocks(page, "yaml") for name in types_in(yaml.safe_load(text))}
    assert named - known == set()


def types_in(value):
    if isinstance(value, dict):
        if isinstance(value.get("_type"), str):
            yield value["_type"]
        for inner in value.values():
            yield from types_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from types_in(inner)


def exit_codes():
    def below(kind):
        yield kind
        for child in kind.__subclasses__():
            yield from below(child)

    inside_a_rollout = set(below(errors.StageError))
    return {kind.exit_code for kind in below(errors.NatFinetuneError) if kind not in inside_a_rollout} | {0}


@pytest.mark.parametrize("name", ["README.md", "docs/run-folder.md"])
def test_exit_codes_are_all_explained(name):
    explained = {int(code) for code in re.findall(r"^\| (\d+) \|", page_named(name), re.MULTILINE)}
    assert explained == exit_codes()


def test_every_choice_of_a_preset_is_explained():
    page = page_named("docs/algorithms.md")
    missing = [word for word in [*PRESETS, *(field.name for field in fields(Preset))] if f"`{word}`" not in page]
    assert missing == []


def test_every_reason_for_dropping_is_explained():
    page = page_named("docs/algorithms.md")
    assert [reason.value for reason in DropReason if f"`{reason.value}`" not in page] == []


def keys():
    """(block, key) of every block that nat_finetune itself defines; `Registry.installed` has imported them all."""
    Registry.installed()
    todo = [Section]
    while todo:
        kind = todo.pop()
        todo += kind.__subclasses__()
        if kind.__module__.startswith("nat_finetune."):
            yield from ((kind.__name__, spellings(kind, key)[0]) for key in kind.model_fields)


def test_every_key_is_explained():
    pages = "".join(page_named(f"docs/{name}.md") for name in ("config", "algorithms", "evaluators", "preferences"))
    missing = [f"{name}.{key}" for name, key in keys() if not re.search(rf"[`{{. ]{key}[`.:}},]", pages)]
    assert missing == []
