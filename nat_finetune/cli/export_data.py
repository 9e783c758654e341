"""`nat-finetune export-data`: what a run trained on, or a file of judgments, as files that another trainer loads."""

from __future__ import annotations

import asyncio
import json as jsonlib
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from nat_finetune.cli.options import Json, Override, Seed


def export_data(
    source: Annotated[Path, typer.Argument(help="a run folder, or a YAML file whose trajectory builder reads records")],
    format: Annotated[
        Literal["nemo-rl", "trl", "openai", "nemo-customizer", "sharegpt"], typer.Option(help="whose files they are")
    ],
    output: Annotated[
        Path | None, typer.Option(help="a folder that does not exist yet [default: RUN/data-FORMAT, or CONFIG-FORMAT]")
    ] = None,
    items: Annotated[
        Literal["pairs", "demonstrations", "rollouts"] | None,
        typer.Option(help="demonstrations: trl, openai, sharegpt; rollouts: trl [default: what the builder makes]"),
    ] = None,
    validation_share: Annotated[
        float | None,
        typer.Option(min=0.0, max=0.9, help="share of the rows to hold out, in whole clusters [default: 0.1]"),
    ] = None,
    manifest: Annotated[
        Path | None, typer.Option(help="a run's split.json: which example is where; those of the test set are left out")
    ] = None,
    split_by: Annotated[
        Literal["near_duplicates", "task_key"] | None, typer.Option(help="of records: what else belongs on one side")
    ] = None,
    pair_weights: Annotated[
        Literal["sample", "refuse"],
        typer.Option(help="where pair_weighting is set: draw one pair of each candidate set, or refuse"),
    ] = "sample",
    on_unwritable: Annotated[
        Literal["fail", "skip"], typer.Option(help="items that say more than the format holds, such as tool calls")
    ] = "fail",
    task_name: Annotated[
        str | None, typer.Option(help="of nemo-rl: a task_name in every row; its PreferenceDataset adds one itself")
    ] = None,
    global_batch_size: Annotated[
        int | None, typer.Option(min=1, help="of nemo-rl: fewer pairs than this are refused [default: 128]")
    ] = None,
    override: Override = None,
    seed: Seed = None,
    json: Json = False,
) -> None:
    """Write training and validation files for another trainer."""
    from nat_finetune.config.load import load_config
    from nat_finetune.data.exports.options import ExportOptions
    from nat_finetune.exports.write import export_data as export
    from nat_finetune.registry import Registry

    registry = Registry.installed()
    overrides = [*(override or []), *([f"finetuning.seed={seed}"] if seed is not None else [])]
    run = source if source.is_dir() else None
    loaded = load_config(source / "config.yml" if run is not None else source, overrides=overrides, registry=registry)
    if output is None:
        output = run / f"data-{format}" if run is not None else Path(f"{source.stem}-{format}")
    options = ExportOptions(
        format,
        items,
        validation_share,
        manifest,
        split_by,
        pair_weights,
        on_unwritable,
        task_name,
        global_batch_size,
    )
    made = asyncio.run(export(loaded, registry, run, output, options))
    if json:
        print(jsonlib.dumps({**asdict(made), "folder": str(made.folder)}))
        return
    for name, count in made.rows.items():
        print(f"{made.folder / name}: {count:,} {made.kind}")
    for reason, count in made.dropped.items():
        print(f"left out, {reason}: {count:,}")
    for note in made.notes:
        print(note)
