"""What the run folder knows of a job: written before the request is sent, so that a crash can't lose or repeat it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from nat_finetune.runstore import RunStore
from nat_finetune.types import JobSpec, TrainingJobRef, TrainingJobStatus


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One update as a job."""

    spec: JobSpec
    ref: TrainingJobRef | None = None
    """None: it is not known whether the request arrived."""
    status: TrainingJobStatus | None = None
    """The last that was seen."""
    submitted_at: str | None = None
    """UTC, when the backend had taken it."""
    ended_at: str | None = None
    outlives: bool = False
    """Whether it goes on without the process that submitted it."""
    earlier: tuple[TrainingJobRef, ...] = ()
    """Jobs of this step that failed or were cancelled before."""
    logs: tuple[str, ...] = ()
    """The backend's last lines, once it has ended."""


class JobRecords:
    """The files `jobs/<step>.json` of a run."""

    def __init__(self, store: RunStore) -> None:
        self._store = store

    def read(self, step: int) -> JobRecord | None:
        """The job of a step; None where nothing was prepared.

        Raises:
            OutputError: the file is not what was written.
        """
        return self._store.read_as(_name(step), JobRecord)

    def write(self, record: JobRecord) -> JobRecord:
        """Keep it, in one piece."""
        self._store.write_json(_name(record.spec.step), record)
        return record

    def all(self) -> list[JobRecord]:
        """Those of all steps, in order."""
        paths = sorted((self._store.folder / "jobs").glob("[0-9]*.json"))
        found = (self.read(int(path.stem)) for path in paths if path.stem.isdecimal())  # not somebody's `00000 copy.json`
        return [record for record in found if record is not None]


def now() -> str:
    """UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def attach_command(folder: Path | None) -> str:
    """What brings a detached job back."""
    return f"nat-finetune jobs attach {shlex.quote(str(folder))}" if folder is not None else "nat-finetune jobs attach RUN"


def _name(step: int) -> str:
    return f"jobs/{step:05d}.json"
