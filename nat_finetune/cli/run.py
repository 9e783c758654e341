"""`nat-finetune run`: finetune as a config says, or continue a run that stopped."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nat_finetune.cli.durations import seconds_of
from nat_finetune.cli.options import Json, Locked, Override, Seed
from nat_finetune.errors import ConfigError, Interrupted, Problem

if TYPE_CHECKING:
    from nat_finetune.config.load import LoadedConfig
    from nat_finetune.registry import Registry
    from nat_finetune.runstore import RunStore
    from nat_finetune.steps.schedule import Budget


def run(
    config: Annotated[Path | None, typer.Argument(help="the YAML file; left out with --resume", show_default=False)] = None,
    override: Override = None,
    output_dir: Annotated[
        Path | None, typer.Option("--output-dir", help="where run folders go, in place of finetuning.output_dir")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="a run folder: go on where it stopped", show_default=False)
    ] = None,
    seed: Seed = None,
    locked: Locked = False,
    budget: Annotated[
        str | None,
        typer.Option("--budget", help="time that there is, such as 6h: training ends inside it", show_default=False),
    ] = None,
    json: Json = False,
) -> None:
    """Finetune as the config says; the report goes into the run folder."""
    from nat_finetune.checks.lock import check_lock, keep_lock
    from nat_finetune.config.load import load_config
    from nat_finetune.finetune import continued_run, new_run
    from nat_finetune.registry import Registry
    from nat_finetune.steps.schedule import Budget

    time = Budget(seconds_of(budget, "--budget")) if budget is not None else None
    registry = Registry.installed()
    if resume is not None:
        if config is not None or override or seed is not None or output_dir is not None or locked:
            raise ConfigError("--resume goes on with the run's own config: leave CONFIG and the other options out")
        loaded, store = continued_run(resume, registry)
    elif config is None:
        raise ConfigError("give a CONFIG, or a run folder with --resume")
    else:
        overrides = [*(override or []), *([f"finetuning.seed={seed}"] if seed is not None else [])]
        loaded = load_config(config, overrides=overrides, registry=registry)
        if not loaded.config.finetuning.enabled:
            problem = Problem("finetuning is not enabled", "finetuning.enabled", file=str(config), hint="set it to true")
            raise ConfigError(problem)
        if locked:
            asyncio.run(check_lock(loaded, registry))
        store = new_run(loaded, output_dir)
        if locked:
            asyncio.run(keep_lock(store.folder / "config.yml", registry))
    go_on(loaded, registry, store, json=json, budget=time)


def go_on(loaded: LoadedConfig, registry: Registry, store: RunStore, *, json: bool, budget: Budget | None = None) -> None:
    """Finetune in a run's folder, from the beginning or from where it stopped, and tell of it.

    Raises:
        Interrupted: Ctrl-C.
    """
    from nat_finetune.cli.progress import LiveProgress, reporter
    from nat_finetune.config.fit import algorithm_line, resolved_algorithm
    from nat_finetune.finetune import finetune

    chosen = resolved_algorithm(loaded.config)
    update = [algorithm_line(chosen)] if chosen else []
    with reporter(as_json=json) as progress:
        progress.run_started({"folder": str(store.folder), "config": str(loaded.path), "notes": [*loaded.notes, *update]})

        def cancel_wanted(job: str) -> bool:
            if isinstance(progress, LiveProgress):
                progress.stop()
            return asks_to_cancel(job)

        try:
            asyncio.run(finetune(loaded, registry, store, progress, budget=budget, cancel_wanted=cancel_wanted))
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # one more Ctrl-C would cut the message, or the clean-up, short
            message = f"stopped; what was finished is kept. Go on with: nat-finetune run --resume {store.folder}"
            raise Interrupted(message) from None


def asks_to_cancel(job: str) -> bool:
    """After Ctrl-C: whether the user wants the job cancelled; without a terminal, or an answer, it is left to run."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    print(f"\n{job} runs at the backend. [d]etach and leave it running, or [c]ancel it? [d] ", end="", flush=True)
    try:
        answer = input()  # its own prompt would go to standard error
    except (EOFError, KeyboardInterrupt):
        return False
    return answer.strip().lower() in ("c", "cancel")
