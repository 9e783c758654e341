"""`nat-finetune export`: a run's model as a folder that plain transformers, or peft, loads."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Literal

import typer

from nat_finetune.cli.options import Checkpoint, RunFolder


def export(
    run: RunFolder,
    output: Annotated[Path, typer.Argument(help="a folder that does not exist yet")],
    format: Annotated[
        Literal["merged", "adapter"], typer.Option(help="merged safetensors, or the LoRA adapter alone (peft)")
    ] = "merged",
    checkpoint: Checkpoint = "best",
) -> None:
    """Write the trained model of a run."""
    from rich.console import Console

    from nat_finetune.config.load import load_config
    from nat_finetune.finetune import export_run
    from nat_finetune.registry import Registry

    registry = Registry.installed()
    loaded = load_config(run / "config.yml", registry=registry)
    policy = asyncio.run(export_run(loaded, registry, run, output, format, checkpoint))
    Console().print(f"{output}: version {policy.version} of llms.{policy.llm}, {format}")
