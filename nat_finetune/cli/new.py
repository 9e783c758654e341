"""`nat-finetune new`: a small package with one component that works, its config, and a test."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nat_finetune.registry import Registry
from nat_finetune.templates.package import Plugin, write_package


def new(
    plugin: Annotated[Plugin, typer.Argument(help="what it holds")],
    name: Annotated[str, typer.Argument(help="of module and component: the config's `_type`", metavar="NAME")],
    output: Annotated[
        Path | None, typer.Option("--output", help="the folder to write; left out: NAME, here", show_default=False)
    ] = None,
) -> None:
    """Write a package with one working component, its config, data and a test; change it into your own."""
    folder = output if output is not None else Path(name)
    written = write_package(plugin, name, folder, Registry.installed())
    for path in written:
        print(f"  {path}")
    print(f"next: cd {folder} && pip install -e . && pytest && nat-finetune smoke {name}.yml && nat-finetune run {name}.yml")
