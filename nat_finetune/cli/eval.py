"""`nat-finetune eval`: a config's model, or a run's, on a held-out dataset with the config's evaluators."""

from __future__ import annotations

import asyncio
import json as jsonlib
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from nat_finetune.cli.options import Checkpoint, Json, Override, Seed
from nat_finetune.types import EvalResult


def evaluate(
    source: Annotated[Path, typer.Argument(help="a YAML file (its base model) or a run folder (its trained model)")],
    split: Annotated[Literal["test", "validation"], typer.Option(help="which of the config's held-out datasets")] = "test",
    checkpoint: Checkpoint = "best",
    override: Override = None,
    seed: Seed = None,
    json: Json = False,
) -> None:
    """Evaluate without training; prints each metric's mean and interval."""
    from nat_finetune.config.load import load_config
    from nat_finetune.finetune import evaluate_config
    from nat_finetune.registry import Registry

    registry = Registry.installed()
    overrides = [*(override or []), *([f"finetuning.seed={seed}"] if seed is not None else [])]
    run = source if source.is_dir() else None
    path = source / "config.yml" if run is not None else source
    loaded = load_config(path, overrides=overrides, registry=registry)
    result = asyncio.run(evaluate_config(loaded, registry, split, run, checkpoint))
    if json:
        print(jsonlib.dumps(_plain(result)))
        return
    _print(result)


def _plain(result: EvalResult) -> dict[str, Any]:
    version = result.policy.version if result.policy else None
    metrics = {name: {"mean": e.mean, "low": e.low, "high": e.high, "n": e.n} for name, e in result.metrics.items()}
    return {"split": result.split, "policy_version": version, "metrics": metrics, "seconds": result.seconds}


def _print(result: EvalResult) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("metric", "mean", "95 % interval", "tasks", box=None)
    for name, e in result.metrics.items():
        interval = "unknown" if e.low is None or e.high is None else f"[{e.low:.3f}, {e.high:.3f}]"
        table.add_row(name, "unknown" if e.mean is None else f"{e.mean:.3f}", interval, str(e.n))
    Console().print(table)
