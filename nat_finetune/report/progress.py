"""What a run tells while it goes on; implementations that print are in `cli/`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from nat_finetune.types import EvalResult, TrainingJobRef, TrainingJobStatus


class Progress(Protocol):
    """Told of every stage of a run."""

    def run_started(self, info: Mapping[str, Any]) -> None:
        """`folder`, `config`, `notes`."""

    def planned(self, steps: int, done: int) -> None:
        """The run has so many steps in all, of which `done` were finished before it was resumed."""

    def stage_started(self, step: int, stage: str, total: int | None) -> None:
        """A stage (`collect`, `update`, `validate`, `test`) begins; `total` rollouts, None if it is not counted in rollouts."""

    def advanced(self, rollouts: int, tokens: int) -> None:
        """So many rollouts more are done, with so many sampled tokens."""

    def step_finished(self, metrics: Mapping[str, Any]) -> None:
        """A step's line of `metrics.jsonl`."""

    def job_status(self, step: int, ref: TrainingJobRef, status: TrainingJobStatus) -> None:
        """The backend says something new of a step's job."""

    def evaluated(self, name: str, step: int, result: EvalResult) -> None:
        """An evaluation is done."""

    def warning(self, text: str) -> None:
        """Something that a user should know."""

    def finished(self, report: Mapping[str, Any]) -> None:
        """The run reached its end."""


class NullProgress:
    """Tells nobody."""

    def run_started(self, info: Mapping[str, Any]) -> None:
        """Say nothing."""

    def planned(self, steps: int, done: int) -> None:
        """Say nothing."""

    def stage_started(self, step: int, stage: str, total: int | None) -> None:
        """Say nothing."""

    def advanced(self, rollouts: int, tokens: int) -> None:
        """Say nothing."""

    def step_finished(self, metrics: Mapping[str, Any]) -> None:
        """Say nothing."""

    def job_status(self, step: int, ref: TrainingJobRef, status: TrainingJobStatus) -> None:
        """Say nothing."""

    def evaluated(self, name: str, step: int, result: EvalResult) -> None:
        """Say nothing."""

    def warning(self, text: str) -> None:
        """Say nothing."""

    def finished(self, report: Mapping[str, Any]) -> None:
        """Say nothing."""
