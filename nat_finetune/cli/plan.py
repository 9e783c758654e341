"""`nat-finetune plan`: what a run will take, before it is paid for."""

from __future__ import annotations

import asyncio
import json as jsonlib
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nat_finetune.cli.durations import duration, seconds_of
from nat_finetune.cli.options import Json, Override, finite
from nat_finetune.errors import ConfigError

if TYPE_CHECKING:
    from nat_finetune.checks.plan import Plan, Prices

MEASURED = 8
"""Examples of the step that is measured."""
LONGEST = 1e9
"""Seconds of one rollout or update: some 30 years."""


def plan(
    config: Annotated[Path, typer.Argument(help="the YAML file", metavar="CONFIG")],
    override: Override = None,
    rollout_seconds: Annotated[
        float | None,
        typer.Option("--rollout-seconds", help="one rollout; left out: measured here", min=0, max=LONGEST, show_default=False),
    ] = None,
    update_seconds: Annotated[
        float | None,
        typer.Option("--update-seconds", help="one update; left out: measured here", min=0, max=LONGEST, show_default=False),
    ] = None,
    slots: Annotated[
        int | None, typer.Option("--slots", help="rollouts at once, in place of max_concurrency", min=1, show_default=False)
    ] = None,
    window: Annotated[str | None, typer.Option("--window", help="time that there is: 90m, 6h, 1d", show_default=False)] = None,
    measure: Annotated[
        int | None, typer.Option("--measure", help=f"examples of the step that is measured [default: {MEASURED}]", min=1)
    ] = None,
    prompt_price: Annotated[
        float, typer.Option("--prompt-price", help="of a million prompt tokens", min=0, callback=finite)
    ] = 0.0,
    completion_price: Annotated[
        float, typer.Option("--completion-price", help="of a million completion tokens", min=0, callback=finite)
    ] = 0.0,
    json: Json = False,
) -> None:
    """Say how many rollouts, tokens and hours a config takes, and what fits into a window.

    With --rollout-seconds nothing is run; without it one step is, on a few examples with the real model, and measured.
    """
    from dataclasses import replace

    from nat_finetune.checks.measure import measure as measured
    from nat_finetune.checks.measure import work_of
    from nat_finetune.checks.plan import Prices, Speeds, make_plan
    from nat_finetune.config.load import load_config
    from nat_finetune.registry import Registry

    if measure is not None and rollout_seconds is not None:
        raise ConfigError("--measure would be ignored: with --rollout-seconds nothing is run")
    seconds = seconds_of(window, "--window") if window is not None else None
    registry, overrides = Registry.installed(), override or []
    loaded = load_config(config, overrides, registry=registry)
    work = asyncio.run(work_of(loaded, registry))
    if rollout_seconds is None:
        typer.echo(f"running one step on {measure or MEASURED} examples, to measure it ...", err=True)
        with tempfile.TemporaryDirectory() as folder:
            speeds = asyncio.run(measured(config, overrides, registry, Path(folder), work=work, examples=measure or MEASURED))
    else:
        speeds = Speeds(rollout_seconds, loaded.config.eval.general.max_concurrency)
    speeds = replace(
        speeds,
        slots=slots if slots is not None else speeds.slots,
        update_seconds=update_seconds if update_seconds is not None else speeds.update_seconds,
    )
    made = make_plan(work, speeds, seconds)
    prices = Prices(prompt_price, completion_price)
    if json:
        print(jsonlib.dumps(_plain(made, prices)))
        return
    print(config)
    for line in lines(made, prices):
        print(f"  {line}")


def lines(made: Plan, prices: Prices) -> list[str]:
    """The plan in sentences."""
    from nat_finetune.checks.plan import largest_generations

    work, speeds = made.work, made.speeds
    passes = f" x {work.passes} passes" if work.passes != 1 else ""
    said = [
        f"rollouts: {work.examples:,} examples x {work.generations} generations{passes} = {work.rollouts:,}"
        f", and {work.evaluation_rollouts:,} to evaluate",
        f"updates: {work.updates:,}",
    ]
    if speeds.calls is not None:
        everything = work.rollouts + work.evaluation_rollouts
        said.append(f"model calls: {speeds.calls * everything:,.0f}")
        if speeds.candidates:
            said.append(f"scored candidates: {speeds.candidates * everything:,.0f}")
    prompt, completion = made.tokens("prompt"), made.tokens("completion")
    if prompt is not None and completion is not None:
        said.append(f"tokens: {prompt:,.0f} prompt, {completion:,.0f} completion")
    at_once = f"{_time(speeds.rollout_seconds)} a rollout, {speeds.slots} at once"
    said.append(f"collection: {_time(made.collection_seconds)} ({at_once})")
    said.append(f"updates: {_time(made.update_seconds)}; evaluation: {_time(made.evaluation_seconds)}")
    said.append(f"in all: {_time(made.total_seconds)}")
    if made.update_seconds is None and speeds.calls is not None:
        said.append("(no update was measured; a plan starts no job of a remote backend. Give --update-seconds)")
    if made.evaluation_seconds is None:
        said.append("(exact evaluations are measured only where a step is run: leave --rollout-seconds out)")
    cost = made.cost(prices)
    if prices.prompt or prices.completion:
        said.append("money: unknown without a measured rollout" if cost is None else f"money: {cost:,.2f}")
    if made.window_seconds is not None and made.left_seconds is not None:
        fits = "left for updates and evaluation" if made.left_seconds >= 0 else "too little for the collection alone"
        said.append(f"window: {duration(made.window_seconds)}, {duration(abs(made.left_seconds))} {fits}")
        if made.updates_in_window is not None:
            said.append(
                f"updates that fit, each with its share of the collection: {made.updates_in_window:,} of {work.updates:,}"
            )
        largest = largest_generations(work, speeds, made.window_seconds)
        said.append(f"largest number of generations that fits: {'unknown' if largest is None else largest}")
    return said


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    return (
        f"{seconds:.2f} s"
        if seconds < 10
        else f"{seconds:,.0f} s"
        if seconds < 120
        else f"{seconds:,.0f} s ({duration(seconds)})"
    )


def _plain(made: Plan, prices: Prices) -> dict[str, Any]:
    derived = {
        "rollouts": made.work.rollouts,
        "evaluation_rollouts": made.work.evaluation_rollouts,
        "total_seconds": made.total_seconds,
        "left_seconds": made.left_seconds,
        "updates_in_window": made.updates_in_window,
        "cost": made.cost(prices),
    }
    return {**asdict(made), **derived}
