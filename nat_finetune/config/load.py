"""From a YAML file to a checked `RunConfig`, or to all that is wrong with it, each problem with file, line and column.

read        the file and its bases (`inherit`), YAML to nodes with places (`nodes`)
migrate     a file of an older schema, in memory (`versions`)
expand      `${VAR}` and `file://` in strings (`expand`)
override    `-o path=value` (`overrides`)
resolve     paths of inputs relative to the file that names them (`paths`)
validate    against the schema and the components' config classes (`schema`, `problems`)
refer       every name of another entry exists (`references`)
fit         builder, adapter, trainer and model go together (`fit`)
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from nat_finetune.config import fit, inherit, overrides, paths, references, resolved, versions
from nat_finetune.config.expand import expand
from nat_finetune.config.nodes import Node, dotted, place, walk
from nat_finetune.config.problems import find, from_pydantic
from nat_finetune.config.schema import CONFIG_VERSION, RunConfig
from nat_finetune.config.shape import spots
from nat_finetune.errors import ConfigError, Problem
from nat_finetune.registry import Registry


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A checked config and where it came from."""

    config: RunConfig
    path: Path
    files: tuple[Path, ...]
    """`path` and its base files."""
    notes: tuple[str, ...]
    """What a user should know, though it is no error."""
    tree: Node

    def to_yaml(self) -> str:
        """The resolved config as YAML, secrets redacted; loads back to an equal config."""
        return resolved.to_yaml(self.config, self.tree)


def load_config(
    path: str | Path,
    overrides: Sequence[str] = (),
    *,
    registry: Registry,
    environment: Mapping[str, str] | None = None,
) -> LoadedConfig:
    """Read, check and resolve a config.

    Args:
        path: The YAML file.
        overrides: `path.to.key=value`, applied in this order.
        registry: The components that `_type` may name.
        environment: What `${VAR}` sees; the process's environment by default.

    Raises:
        ConfigError: with all problems of the file.
    """
    environment = os.environ if environment is None else environment
    source = inherit.read(Path(path), environment)
    current, changes = versions.migrated(source.tree)
    tree, problems = _overridden(expand(current, environment), overrides, environment, registry)
    tree = paths.resolve(tree, list(spots(tree, registry)))
    problems += [
        place(replace(node.problem, key=dotted(where)), node.mark) for where, node in walk(tree) if node.problem is not None
    ]
    version, notes = _version(tree)
    problems += version
    notes += changes
    config: RunConfig | None = None
    try:
        config = RunConfig.read(tree.plain(), registry)
    except ValidationError as error:
        problems += from_pydantic(error, tree, registry)
    problems += references.dangling(tree, spots(tree, registry))
    if config is not None and not problems:
        problems += [_placed(problem, tree) for problem in fit.misfits(config)]
    if problems or config is None:
        raise ConfigError(_in_order(problems, str(path)))
    return LoadedConfig(config, Path(path), source.files, tuple(notes), tree)


def _overridden(
    tree: Node, given: Sequence[str], environment: Mapping[str, str], registry: Registry
) -> tuple[Node, list[Problem]]:
    try:
        return overrides.apply(tree, given, environment, registry), []
    except ConfigError as error:
        return tree, list(error.problems)


def _version(tree: Node) -> tuple[list[Problem], list[str]]:
    node = tree.mapping.get("config_version")
    if node is None or node.value is None:
        note = (
            "config_version is absent: read as a NeMo Agent Toolkit config; `nat-finetune migrate` writes it as one of today's"
        )
        return [], [note]
    if isinstance(node.value, int) and not isinstance(node.value, bool) and node.value != CONFIG_VERSION:
        message = f"config_version {node.value} is not known, this version of nat-finetune knows {CONFIG_VERSION}"
        hint = "a newer nat-finetune may" if node.value > CONFIG_VERSION else f"write `config_version: {CONFIG_VERSION}`"
        return [place(Problem(message, key="config_version", hint=hint), node.mark)], []
    return [], []


def _placed(problem: Problem, tree: Node) -> Problem:
    """A misfit with the place of its key, or of the nearest block above it that is in the file."""
    node = find(tree, tuple(problem.key.split(".")))
    return place(problem, node.key_mark or node.mark)


def _in_order(problems: list[Problem], path: str) -> list[Problem]:
    """By place: the named file first, then its bases, overrides last; each once."""

    def order(problem: Problem) -> tuple[int, str, int, int]:
        rank = 0 if problem.file == path else 1 if problem.line is not None else 2
        return rank, problem.file or "", problem.line or 0, problem.column or 0

    return sorted(dict.fromkeys(problems), key=order)
