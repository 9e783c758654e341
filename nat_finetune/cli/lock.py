"""`nat-finetune lock`: write down what a config means now, so that drift is refused later."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer


def lock(
    configs: Annotated[list[Path], typer.Argument(help="YAML files", metavar="CONFIG...", show_default=False)],
) -> None:
    """Write CONFIG.lock.yml beside each config: values, versions of components and packages, hashes of models and datasets."""
    from nat_finetune.checks.lock import lock_path, make_lock, write_lock
    from nat_finetune.config.load import load_config
    from nat_finetune.registry import Registry

    registry = Registry.installed()
    for path in configs:
        loaded = load_config(path, registry=registry)
        write_lock(lock_path(path), asyncio.run(make_lock(loaded, registry)))
        print(lock_path(path))
