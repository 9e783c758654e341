"""`nat-finetune serve-rollouts`: the config's workflow as a service, for a training framework that owns its generation."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nat_finetune.cli.options import Override
from nat_finetune.errors import ConfigError
from nat_finetune.whole_file import write_whole

if TYPE_CHECKING:
    from nat_finetune.config.load import LoadedConfig


def serve_rollouts(
    config: Annotated[Path, typer.Argument(help="a YAML file, or a run folder", metavar="CONFIG")],
    override: Override = None,
    host: Annotated[str, typer.Option(help="any other address than loopback needs NAT_FINETUNE_ROLLOUT_TOKEN")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free one")] = 0,
    max_concurrency: Annotated[
        int | None, typer.Option(min=1, help="rollouts at once, in place of the config's", show_default=False)
    ] = None,
    ready_file: Annotated[
        Path | None, typer.Option(help="written when the service answers: JSON with `url`", show_default=False)
    ] = None,
    while_stdin: Annotated[bool, typer.Option("--while-stdin", help="stop when standard input ends: with the parent")] = False,
) -> None:
    """Run the workflow of a config for whoever asks by HTTP; the target model is served by the caller."""
    from nat_finetune.config.load import load_config
    from nat_finetune.registry import Registry

    registry = Registry.installed()
    path = config / "config.yml" if config.is_dir() else config
    loaded = load_config(path, overrides=override or [], registry=registry)

    def ready(url: str) -> None:
        if ready_file is not None:
            write_whole(ready_file, json.dumps({"url": url}) + "\n")
        print(f"serving rollouts of {config} on {url} (Ctrl-C ends it)", flush=True)

    async def serve(loaded: LoadedConfig) -> None:
        from nat_finetune.rollout_server import serve_rollouts as serve_on
        from nat_finetune.served_rollouts import served_rollouts

        async with served_rollouts(loaded.config, registry, max_concurrency=max_concurrency) as rollouts:
            await serve_on(rollouts, host=host, port=port, on_ready=ready, until=partial(_stopped, while_stdin))

    asyncio.run(serve(loaded))


async def _stopped(while_stdin: bool) -> None:
    """Ends on Ctrl-C, on a termination signal, and, where asked, when standard input ends."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if while_stdin:
        try:
            loop.add_reader(sys.stdin.fileno(), _read_on, stop)
        except PermissionError:
            raise ConfigError("--while-stdin needs a pipe or a terminal as standard input") from None
    await stop.wait()


def _read_on(stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        stop.set()
