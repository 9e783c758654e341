"""`nat-finetune smoke`: a config end to end in small, before hours are paid for."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from nat_finetune.cli.options import Override


def smoke(
    config: Annotated[Path, typer.Argument(help="the YAML file", metavar="CONFIG")],
    override: Override = None,
    keep: Annotated[
        Path | None, typer.Option("--keep", help="a folder for the run's files; left out: they are deleted", show_default=False)
    ] = None,
) -> None:
    """Run the workflow of a config on two examples and one update, with a small random policy in place of every model.

    It tests the plumbing (events, items, masks, update, export, reload) and says nothing about scores.
    """
    from nat_finetune.checks.smoke import smoke as run_small
    from nat_finetune.registry import Registry

    registry = Registry.installed()
    print(f"{config}: a random policy of bytes in place of every model, two examples, one update")
    with tempfile.TemporaryDirectory() as scratch:
        result = asyncio.run(run_small(config, override or [], registry, keep or Path(scratch)))
    for line in result.lines:
        print(f"  {line}")
    print(f"{config}: the plumbing holds, in {result.seconds:.0f} s")
