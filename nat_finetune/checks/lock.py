"""`config.lock.yml`: what a config meant when it was locked, so that drift is seen before it is paid for.

A lock holds the resolved values, the versions of components and packages, and the hashes of models and datasets. Paths are
relative to the lock, so that it can be committed and checked on another machine; secrets are not in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from nat_finetune.compose import Composition, compose
from nat_finetune.config.component import ComponentConfig, InputPath, LLMBaseConfig
from nat_finetune.config.differences import Change, Difference, compare
from nat_finetune.config.load import LoadedConfig, load_config
from nat_finetune.config.nodes import dotted, parse
from nat_finetune.config.resolved import resolved_values
from nat_finetune.config.schema import CONFIG_VERSION, Slot
from nat_finetune.config.shape import Spot, spots
from nat_finetune.data.keys import examples_digest
from nat_finetune.errors import ConfigError, Problem
from nat_finetune.local.source import resolve_source
from nat_finetune.registry import Kind, Registry
from nat_finetune.whole_file import write_whole

LOCK_VERSION = 1
PACKAGES = ("nat-finetune", "torch", "transformers", "tokenizers", "peft", "safetensors", "accelerate", "numpy", "pydantic")
"""Packages whose release can change what a run computes."""
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json", "merges.txt", "tokenizer.model",
)  # fmt: skip
TEMPLATE_FILE = "chat_template.jinja"
_BLOCK = 1 << 20
_HEAD = "# Written by `nat-finetune lock`. `validate --locked` and `run --locked` refuse whatever is not as it is here.\n"


def lock_path(config: Path) -> Path:
    """Where the lock of a config stands: `config.yml` has `config.lock.yml` beside it."""
    return config.with_name(f"{config.stem}.lock.yml")


async def make_lock(loaded: LoadedConfig, registry: Registry) -> dict[str, Any]:
    """What a config means now, as plain data.

    Raises:
        ConfigError: a model is a hub id that no revision pins.
        DataError: a dataset can't be read.
    """
    places = list(spots(loaded.tree, registry))
    async with compose(loaded.config, registry) as parts:
        datasets = {dotted(spot.path): await _dataset(spot, loaded, parts) for spot in places if _is_dataset(spot)}
    return {
        "lock_version": LOCK_VERSION,
        "config_version": loaded.config.config_version or CONFIG_VERSION,
        "packages": {name: _release(name) for name in PACKAGES},
        "components": dict(_components(loaded, registry)),
        "models": {name: _model(f"llms.{name}", llm) for name, llm in loaded.config.llms.items() if llm.trainable_locally},
        "datasets": datasets,
        "values": _values(loaded, places),
    }


def write_lock(path: Path, lock: Mapping[str, Any]) -> None:
    """Write a lock.

    Raises:
        OutputError: it can't be written.
    """
    write_whole(path, _HEAD + yaml.safe_dump(dict(lock), sort_keys=False, allow_unicode=True, width=120))


def read_lock(path: Path) -> dict[str, Any]:
    """A lock as it was written.

    Raises:
        ConfigError: there is none, or it is not one.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        hint = "`nat-finetune lock CONFIG` writes one"
        raise ConfigError(Problem("there is no lock that can be read", file=str(path), hint=hint)) from None
    lock = parse(text, str(path)).plain()
    found = lock.get("lock_version") if isinstance(lock, dict) else None
    if found != LOCK_VERSION:
        message = f"expected a lock of version {LOCK_VERSION}, found {found!r}"
        raise ConfigError(Problem(message, file=str(path), hint="`nat-finetune lock CONFIG` writes one"))
    assert isinstance(lock, dict), "a mapping has the lock's version"
    return lock


async def keep_lock(config: Path, registry: Registry) -> None:
    """Lock the config of a new run in the run's folder: `run FOLDER/config.yml --locked` replays it, or says what drifted."""
    write_lock(lock_path(config), await make_lock(load_config(config, registry=registry), registry))


async def check_lock(loaded: LoadedConfig, registry: Registry) -> None:
    """Hold a config against the lock beside it.

    Raises:
        ConfigError: there is no lock, or something drifted: a problem for each difference.
    """
    path = lock_path(loaded.path)
    locked = read_lock(path)
    drifted = compare(locked, await make_lock(loaded, registry))
    if drifted:
        raise ConfigError([_drift(difference, path) for difference in drifted])


def _drift(difference: Difference, path: Path) -> Problem:
    message = {
        Change.ADDED: f"not in the lock, found {difference.after}",
        Change.REMOVED: f"locked as {difference.before}, not there any more",
        Change.CHANGED: f"locked as {difference.before}, found {difference.after}",
    }[difference.change]
    return Problem(message, difference.key, str(path), hint="put it back, or lock anew")


def _release(package: str) -> str | None:
    """A package's release; the CPU and the CUDA build of one release are the same."""
    try:
        return version(package).partition("+")[0]
    except PackageNotFoundError:
        return None


def _components(loaded: LoadedConfig, registry: Registry) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every component that the config uses, with its config's version and where it comes from."""
    used = {type(value) for value in _models(loaded.config) if isinstance(value, ComponentConfig)}
    for component in registry:
        if component.config_type in used:
            about = {"version": component.config_type.component_version, "origin": component.origin}
            yield f"{component.kind.value}/{component.name}", about


def _models(value: Any) -> Iterator[BaseModel]:
    if isinstance(value, BaseModel):
        yield value
        for name in type(value).model_fields:
            yield from _models(getattr(value, name))
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _models(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _models(item)


def _model(key: str, llm: LLMBaseConfig) -> dict[str, Any]:
    """Hashes of a local model's files; of a hub id the revision, which names its files."""
    values = llm.model_dump(include={"model", "revision"})
    source = resolve_source(str(values.get("model")))
    revision = values.get("revision")
    if not source.local:
        if revision is None:
            hint = "set `revision:` to a commit"
            raise ConfigError(Problem("a hub id without a revision can be another model tomorrow", f"{key}.model", hint=hint))
        return {"revision": revision}
    folder = Path(source.name)
    weights = [folder / source.gguf_file] if source.gguf_file else sorted(folder.glob("*.safetensors"))
    return {
        "weights": _files_digest([*weights, *folder.glob("config.json")]),
        "tokenizer": _files_digest([folder / name for name in TOKENIZER_FILES]),
        "chat_template": _files_digest([folder / TEMPLATE_FILE]),
    }


def _files_digest(paths: list[Path]) -> str | None:
    """One hash over the files that there are, with their names; None where there is none."""
    digest, found = sha256(), False
    for path in paths:
        if path.is_file():
            found = True
            digest.update(path.name.encode() + b"\0")
            with path.open("rb") as file:
                while block := file.read(_BLOCK):
                    digest.update(block)
    return digest.hexdigest()[:32] if found else None


def _is_dataset(spot: Spot) -> bool:
    return spot.node.value is not None and any(isinstance(m, Slot) and m.kind is Kind.DATASET for m in spot.shape.marks)


async def _dataset(spot: Spot, loaded: LoadedConfig, parts: Composition) -> dict[str, Any]:
    config: Any = loaded.config
    for key in spot.path:
        config = getattr(config, str(key)) if isinstance(config, BaseModel) else config[key]
    examples = await parts.load_examples(config, dotted(spot.path))
    return {"examples": len(examples), "hash": examples_digest(examples)}


def _values(loaded: LoadedConfig, places: list[Spot]) -> dict[str, Any]:
    """The resolved values, defaults and all; input paths relative to the config's folder, which the lock shares."""
    values, folder = resolved_values(loaded.config, loaded.tree), loaded.path.absolute().parent
    for spot in places:
        text = spot.node.value
        if any(isinstance(mark, InputPath) for mark in spot.shape.marks) and isinstance(text, str) and os.path.isabs(text):
            block: Any = values
            for key in spot.path[:-1]:
                block = block[key]
            block[spot.path[-1]] = Path(os.path.relpath(text, folder)).as_posix()
    return values
