"""`nat-finetune validate`: is a config right? Answered without loading a model, with all problems at once."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nat_finetune.cli.options import Locked, Override
from nat_finetune.errors import ConfigError, DataError, Problem

if TYPE_CHECKING:
    from nat_finetune.config.schema import RunConfig
    from nat_finetune.registry import Registry

Format = Literal["text", "json", "sarif", "github", "junit"]


@dataclass(frozen=True, slots=True)
class Checked:
    """What is to say of one config."""

    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    algorithm: dict[str, Any] = field(default_factory=dict)
    """Every choice of the update, presets resolved."""


def validate(
    configs: Annotated[list[Path], typer.Argument(help="YAML files", metavar="CONFIG...", show_default=False)],
    override: Override = None,
    locked: Locked = False,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", help="NAME or NAME=value: a variable that will be set where the run is", metavar="NAME"),
    ] = None,
    format: Annotated[Format, typer.Option("--format", help="how to say it")] = "text",
) -> None:
    """Check configs: keys, types, ranges, names, and whether the parts fit together."""
    from nat_finetune.cli import findings
    from nat_finetune.registry import Registry

    registry = Registry.installed()
    environment = {**os.environ, **_declared(env or [])}
    locks = [path for path in configs if path.name.endswith((".lock.yml", ".lock.yaml"))]  # a pattern names them too
    found = {
        str(path): _check(path, override or [], registry, environment, locked=locked) for path in configs if path not in locks
    }
    problems = {path: checked.problems for path, checked in found.items()}
    match format:
        case "json":
            print(_json(found))
        case "sarif":
            print(findings.sarif(problems))
        case "junit":
            print(findings.junit(problems))
        case "github":
            print(findings.github(problems))
        case "text":
            for path, checked in found.items():
                _print(path, checked)
            for lock in locks:
                print(f"{lock}: a lock, not a config; --locked holds its config against it")
    if any(problems.values()):
        raise typer.Exit(ConfigError.exit_code)


def _declared(names: list[str]) -> dict[str, str]:
    """Variables that are declared as present; one without a value has its own name as a text."""
    pairs = [name.partition("=") for name in names]
    bad = [name for name, _, _ in pairs if not name.isidentifier()]
    if bad:
        raise ConfigError(f"--env takes NAME or NAME=value, found {', '.join(bad)}")
    return {name: value if equals else name for name, equals, value in pairs}


def _check(path: Path, overrides: list[str], registry: Registry, environment: Mapping[str, str], *, locked: bool) -> Checked:
    from nat_finetune.config.fit import resolved_algorithm
    from nat_finetune.config.load import load_config

    try:
        loaded = load_config(path, overrides, registry=registry, environment=environment)
        if locked:
            from nat_finetune.checks.lock import check_lock

            asyncio.run(check_lock(loaded, registry))
    except ConfigError as error:
        return Checked(problems=list(error.problems))
    except DataError as error:  # a locked dataset is read
        return Checked(problems=[Problem(str(error), file=str(path))])
    return Checked(notes=[*loaded.notes, *_missing_here(loaded.config)], algorithm=resolved_algorithm(loaded.config))


def _missing_here(config: RunConfig) -> list[str]:
    """What the backend needs and this machine lacks: no fault of the config, which may be run elsewhere."""
    from nat_finetune.config.chosen import adapter_of

    adapter = adapter_of(config)
    lacks = None if adapter is None else adapter.lacks()
    return [] if lacks is None else [f"trainer_adapters.{config.finetuning.trainer_adapter}.{lacks}"]


def _json(found: Mapping[str, Checked]) -> str:
    files = [{"path": path, "ok": not checked.problems, **asdict(checked)} for path, checked in found.items()]
    return json.dumps({"ok": all(entry["ok"] for entry in files), "files": files}, indent=2)


def _print(path: str, checked: Checked) -> None:
    from nat_finetune.config.fit import algorithm_line

    for problem in checked.problems:
        print(problem)
    for note in checked.notes:
        print(f"{path}: note: {note}")
    if checked.algorithm:
        print(f"{path}: {algorithm_line(checked.algorithm)}")
    count = len(checked.problems)
    print(f"{path}: ok" if not count else f"{path}: {count} problem{'s' if count > 1 else ''}")
