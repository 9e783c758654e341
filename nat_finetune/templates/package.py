"""One package of a plugin: which files it has, and how they are written, all or none."""

from __future__ import annotations

import keyword
import re
import shutil
from enum import StrEnum
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from nat_finetune.errors import ConfigError, OutputError, Problem
from nat_finetune.registry import Kind, Registry

_NAME = re.compile(r"[a-z][a-z0-9_]*")


class Plugin(StrEnum):
    """What a new package can hold."""

    WORKFLOW = "workflow"
    EVALUATOR = "evaluator"
    BUILDER = "builder"
    ADAPTER = "adapter"
    TRAINER = "trainer"


_KINDS = {
    Plugin.WORKFLOW: Kind.FUNCTION,
    Plugin.EVALUATOR: Kind.EVALUATOR,
    Plugin.BUILDER: Kind.TRAJECTORY_BUILDER,
    Plugin.ADAPTER: Kind.TRAINER_ADAPTER,
    Plugin.TRAINER: Kind.TRAINER,
}
_WHAT = {
    Plugin.WORKFLOW: "A workflow",
    Plugin.EVALUATOR: "An evaluator",
    Plugin.BUILDER: "A trajectory builder",
    Plugin.ADAPTER: "A trainer adapter",
    Plugin.TRAINER: "A trainer",
}


def write_package(plugin: Plugin, name: str, folder: Path, registry: Registry) -> list[Path]:
    """Write a package that holds one component named `name`; returns its files.

    Raises:
        ConfigError: the name can't be a module's and a component's, or is taken.
        OutputError: the folder exists, or can't be written; nothing is left of it.
    """
    _check_name(plugin, name, registry)
    if folder.exists():
        raise OutputError(f"{folder} exists; give a folder that does not, with --output")
    texts = _texts(plugin, name)
    unfinished = folder.with_name(folder.name + ".unfinished")
    try:
        unfinished.mkdir(parents=True)
        for file, text in texts.items():
            (unfinished / file).write_text(text, encoding="utf-8")
        unfinished.rename(folder)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise OutputError(f"can't write {folder}: {error}; give another folder with --output") from error
    return [folder / file for file in texts]


def _texts(plugin: Plugin, name: str) -> dict[str, str]:
    """File name -> text."""
    sources = {
        "pyproject.toml": "pyproject.toml",
        "README.md": "README.md",
        f"{name}.py": f"{plugin}.py",
        f"{name}.yml": f"{plugin}.yml",
        f"test_{name}.py": f"{plugin}_test.py",
        "train.jsonl": "train.jsonl",
        "test.jsonl": "test.jsonl",
    }
    values = {
        "@name@": name,
        "@Class@": "".join(part.capitalize() for part in name.split("_")),
        "@dist@": name.strip("_").replace("_", "-"),
        "@what@": _WHAT[plugin],
    }
    return {file: _filled(source, values) for file, source in sources.items()}


def _filled(source: str, values: dict[str, str]) -> str:
    text = (files("nat_finetune.templates") / f"{source}.tmpl").read_text(encoding="utf-8")
    for place, value in values.items():
        text = text.replace(place, value)
    return text


def _check_name(plugin: Plugin, name: str, registry: Registry) -> None:
    if not _NAME.fullmatch(name) or name.endswith("_") or keyword.iskeyword(name) or keyword.issoftkeyword(name):
        usable = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
        hint = f"such as {usable!r}" if _NAME.fullmatch(usable) and usable != name else "such as 'my_plugin'"
        message = f"the name {name!r} can't be a module's: small letters, digits and underscores, a letter first"
        raise ConfigError(Problem(message, hint=hint))
    kind = _KINDS[plugin]
    taken = next((known for known in registry if known.kind is kind and known.name == name), None)
    if taken is not None:
        message = f"a component of {kind.value} is named {name!r} already: {taken.place}"
        raise ConfigError(Problem(message, hint="choose another name"))
    if find_spec(name) is not None:
        message = f"a module {name!r} can be imported here already; the new one would hide it, or be hidden"
        raise ConfigError(Problem(message, hint="choose another name"))
