"""What a job left behind: where it stands, what it measured, and what the report says of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from nat_finetune.errors import BackendError
from nat_finetune.remote.process import Seen
from nat_finetune.types import JobState, TrainingJobStatus

OUTPUT, RESULT, PROGRESS = "output", "result.json", "progress.json"
_NAMES: Mapping[str, str] = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "rewards/margins": "margin",
    "rewards/accuracies": "accuracy",
    "entropy": "entropy",
    "kl": "kl_ref",
    "reward": "reward",
    "reward_std": "reward_std",
    "clip_ratio/region_mean": "clip_fraction",
    "completions/mean_length": "completion_tokens",
    "mean_token_accuracy": "token_accuracy",
}
"""TRL's names of what it measures -> ours."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A job's result file."""

    optimiser_steps: int
    curve: tuple[dict[str, float], ...]
    """What was measured in each optimiser step."""
    seconds: float
    canary: tuple[tuple[float, ...], ...]
    versions: Mapping[str, str]
    rollouts: Mapping[str, int] | None
    """Counts of rollouts, where TRL asked for them."""

    @property
    def metrics(self) -> dict[str, float]:
        """Means over the optimiser steps that have a value."""
        names = dict.fromkeys(name for step in self.curve for name in step)
        return {name: fmean(step[name] for step in self.curve if name in step) for name in names}


def read_outcome(folder: Path) -> Outcome:
    """The result of a job that is done.

    Raises:
        BackendError: there is none that can be read.
    """
    path = folder / RESULT
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        return Outcome(
            optimiser_steps=told["optimiser_steps"],
            curve=tuple(_renamed(entry) for entry in told["history"] if "loss" in entry),
            seconds=told["seconds"],
            canary=tuple(tuple(row) for row in told["canary"]),
            versions=told["versions"],
            rollouts=told.get("rollouts"),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BackendError(f"{path} is no result of a job: {error!r}") from error


def _renamed(entry: Mapping[str, Any]) -> dict[str, float]:
    found = {_NAMES[name]: value for name, value in entry.items() if name in _NAMES}
    return found | {name: value for name, value in entry.items() if name.startswith("rewards/") and name.endswith("/mean")}


def status_of(seen: Seen, folder: Path, lines: Sequence[str]) -> TrainingJobStatus:
    """Where a job stands: by its process, its exit code and the files that it writes."""
    share, last = _progress(folder)
    metrics = {_NAMES[name]: float(value) for name, value in last.items() if name in _NAMES}
    if seen.running:
        return TrainingJobStatus(JobState.RUNNING, share, backend_state="running", metrics=metrics)
    if seen.exit_code == 0 and (folder / RESULT).is_file():
        return TrainingJobStatus(JobState.COMPLETED, 1.0, backend_state="exit code 0", metrics=metrics)
    if seen.cancelled:
        return TrainingJobStatus(JobState.CANCELLED, share, backend_state="cancelled", metrics=metrics)
    word = "gone" if seen.exit_code is None else f"exit code {seen.exit_code}"
    return TrainingJobStatus(JobState.FAILED, share, reason(seen, lines), word, metrics)


def reason(seen: Seen, lines: Sequence[str]) -> str:
    """Why a job has no result: the last line that says something, which of a traceback is the error."""
    if seen.exit_code is None:
        return "it ended without an exit code: it was killed, or the machine was restarted"
    said = [line.strip() for line in lines if line.strip()]
    return said[-1] if said else "it said nothing"


def _progress(folder: Path) -> tuple[float | None, Mapping[str, float]]:
    try:
        told = json.loads((folder / PROGRESS).read_text(encoding="utf-8"))
        return (told["step"] / told["steps"] if told["steps"] else None), told["last"]
    except (OSError, ValueError, KeyError, TypeError):
        return None, {}
