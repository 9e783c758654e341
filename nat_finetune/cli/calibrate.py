"""`nat-finetune calibrate`: does the reward agree with people, with itself, and what is its cheapest exploit?"""

from __future__ import annotations

import asyncio
import json as jsonlib
from pathlib import Path
from typing import Annotated

import typer

from nat_finetune.cli.options import Json, Override
from nat_finetune.errors import UntrustedReward


def calibrate(
    config: Annotated[Path, typer.Argument(help="the YAML file")],
    verdicts: Annotated[Path, typer.Option(help="JSONL: example_id, verdict, and output or rollout_id")],
    run: Annotated[
        Path | None, typer.Option("--run", help="the run folder that holds the judged rollouts", show_default=False)
    ] = None,
    override: Override = None,
    json: Json = False,
) -> None:
    """Hold the config's reward against reviewers' verdicts; exit code 4 where it disagrees with them."""
    from nat_finetune.config.load import load_config
    from nat_finetune.preflight.messages import verdicts_lines
    from nat_finetune.preflight.reward_check import calibrate_config
    from nat_finetune.registry import Registry

    registry = Registry.installed()
    loaded = load_config(config, overrides=override or [], registry=registry)
    check = asyncio.run(calibrate_config(loaded, registry, verdicts, run))
    if json:
        print(jsonlib.dumps(check.to_dict()))
    else:
        print("\n".join(verdicts_lines(check)))
    if check.problems:
        raise UntrustedReward(f"not fit to train on: {'; '.join(check.problems)}")
