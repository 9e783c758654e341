"""Pairs, configs and adapters for the tests of NeMo RL."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nat_finetune_plugins.nemo_rl.adapter import NemoRLTrainerAdapter
from nat_finetune_plugins.nemo_rl.launchers import make_launcher
from nat_finetune_plugins.nemo_rl.settings import NemoRLTrainerAdapterConfig

from nat_finetune.testing.items import pair
from nat_finetune.types import Collection, PreferencePair, Target

TARGET = Target(("choose_move",), "policy")


def pairs(count: int) -> list[PreferencePair]:
    """Each of an example of its own."""
    return [pair(f"take {place}", "give up", text=f"move {place}", example=place) for place in range(count)]


def collection(items: Sequence[PreferencePair], step: int = 0) -> Collection:
    return Collection(tuple(items), "run-1", step, "policy")


def settings(checkout: Path | str, /, **more: Any) -> NemoRLTrainerAdapterConfig:
    given = {
        "checkout": str(checkout),
        "launch": {"name": "subprocess", "grace_seconds": 2.0},
        "model": "some-org/some-model",
        "algorithm": {"name": "dpo", "batch_size": 4},
        "learning_rate": 1e-6,
        "command": [f"{checkout}/uv", "run"],
        "poll_seconds": 0.02,
        "timeout_seconds": 60,
    }
    return NemoRLTrainerAdapterConfig.model_validate(given | more)


def adapter(config: NemoRLTrainerAdapterConfig, folder: Path) -> NemoRLTrainerAdapter:
    launcher = make_launcher(config, "cluster")
    return NemoRLTrainerAdapter(config, launcher, target=TARGET, name="cluster", seed=7, folder=folder)
