"""`nat-finetune explain`: what a key of the config means."""

from __future__ import annotations

import json as jsonlib
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from nat_finetune.cli.options import Json, Override


def explain(
    key: Annotated[str, typer.Argument(help="dotted, such as finetuning.num_epochs", metavar="KEY")],
    config: Annotated[
        Path | None,
        typer.Argument(
            help="a config: its value and where that came from are shown too", metavar="[CONFIG]", show_default=False
        ),
    ] = None,
    override: Override = None,
    json: Json = False,
) -> None:
    """Say what a key means, what may stand there, its default, and, with a config, its value and where that came from.

    Without a config, a component's `_type` stands in place of an entry's name: trainer_adapters.local_trainer_adapter.epochs
    """
    from nat_finetune.config.explain import explain as look_up
    from nat_finetune.config.load import load_config
    from nat_finetune.registry import Registry

    registry = Registry.installed()
    loaded = load_config(config, override or [], registry=registry) if config is not None else None
    found = look_up(key, registry, loaded)
    if json:
        print(jsonlib.dumps(asdict(found)))
        return
    print(found.key)
    if found.meaning:
        print(f"  {found.meaning}")
    rows = {"expects": found.expects, "default": found.default, "value": found.value, "from": found.origin}
    for name, text in {**rows, "honoured by": found.honoured}.items():
        if text is not None:
            print(f"  {name + ':':<13}{text}")
    width = max((len(name) for name in found.keys), default=0)
    for name, text in found.keys.items():
        print(f"    {name:<{width}}  {text}".rstrip())
