"""`nat-finetune diff`: two configs compared by what they mean."""

from __future__ import annotations

import json as jsonlib
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from nat_finetune.cli.options import Json


def diff(
    before: Annotated[Path, typer.Argument(help="a config, or a run folder's config.yml", metavar="A")],
    after: Annotated[Path, typer.Argument(help="the config to compare it with", metavar="B")],
    json: Json = False,
) -> None:
    """Compare two configs by meaning: bases merged, variables expanded, defaults filled in; exit code 1 where they differ."""
    from nat_finetune.config.differences import differences
    from nat_finetune.config.load import load_config
    from nat_finetune.registry import Registry

    registry = Registry.installed()
    found = differences(load_config(before, registry=registry).config, load_config(after, registry=registry).config)
    if json:
        print(jsonlib.dumps([asdict(difference) for difference in found], default=str))
    else:
        for difference in found:
            print(difference)
        print(f"{len(found)} difference{'' if len(found) == 1 else 's'}")
    if found:
        raise typer.Exit(1)
