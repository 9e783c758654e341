"""`nat-finetune validate`: is a config right? Answered without loading a model, with all problems at once."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from nat_finetune.cli.options import Locked, Override
from nat_finetune.errors import ConfigError


def validate(
    configs: Annotated[list[Path], typer.Argument(help="YAML files", metavar="CONFIG...", show_default=False)],
    override: Override = None,
    locked: Locked = False,
    format: Annotated[Literal["text", "json"], typer.Option("--format", help="how to say it")] = "text",
) -> None:
    """Check configs: keys, types, ranges, names, and whether the parts fit together."""
    from nat_finetune.registry import Registry

    registry = Registry.installed()
    found = {str(path): _check(path, override or [], registry, locked=locked) for path in configs}
    ok = not any(entry["problems"] for entry in found.values())
    if format == "json":
        print(json.dumps({"ok": ok, "files": [{"path": path, **entry} for path, entry in found.items()]}, indent=2))
    else:
        for path, entry in found.items():
            _print(path, entry["problems"], entry["notes"])
    if not ok:
        raise typer.Exit(ConfigError.exit_code)


def _check(path: Path, overrides: list[str], registry: Any, *, locked: bool) -> dict[str, Any]:
    from nat_finetune.config.load import load_config
    from nat_finetune.lock import check_lock

    try:
        loaded = load_config(path, overrides, registry=registry)
        if locked:
            asyncio.run(check_lock(loaded, registry))
    except ConfigError as error:
        return {"ok": False, "problems": [asdict(problem) for problem in error.problems], "notes": []}
    return {"ok": True, "problems": [], "notes": list(loaded.notes)}


def _print(path: str, problems: list[dict[str, Any]], notes: list[str]) -> None:
    from nat_finetune.errors import Problem

    for problem in problems:
        print(Problem(**problem))
    for note in notes:
        print(f"{path}: note: {note}")
    count = len(problems)
    print(f"{path}: ok" if not count else f"{path}: {count} problem{'s' if count > 1 else ''}")
