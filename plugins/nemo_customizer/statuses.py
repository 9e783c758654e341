"""The service's words for where a job or a deployment stands, all of them, and what they come to here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nat_finetune_plugins.nemo_customizer.answers import Deployment, Status, StatusLog, Value

from nat_finetune.types import JobState, TrainingJobStatus

JOB_STATES: Mapping[str, JobState] = {
    "created": JobState.PENDING,
    "pending": JobState.PENDING,
    "running": JobState.RUNNING,
    "cancelling": JobState.RUNNING,
    "cancelled": JobState.CANCELLED,
    "canceled": JobState.CANCELLED,
    "failed": JobState.FAILED,
    "completed": JobState.COMPLETED,
    "ready": JobState.COMPLETED,  # its model can be used, which no job says that still trains
}
"""Of a customization job; `unknown`, and any word that is not here, stays unknown."""

DEPLOYMENT_STATES: Mapping[str, JobState] = {
    **JOB_STATES,
    "deploying": JobState.RUNNING,
    "error": JobState.FAILED,
}
"""Of a deployment."""


def job_status(status: Status) -> TrainingJobStatus:
    """A job's status; what the service does not say is None."""
    done = status.percentage_done
    return TrainingJobStatus(
        state=JOB_STATES.get(status.status.lower(), JobState.UNKNOWN),
        progress=None if done is None else min(1.0, max(0.0, done / 100)),
        message=_message(status),
        backend_state=status.status,
        metrics=losses(status),
        detail=_said({"best_epoch": status.best_epoch, "epochs": status.epochs_completed, "steps": status.steps_completed}),
    )


def deployment_status(deployment: Deployment) -> TrainingJobStatus:
    """A deployment's status; only `ready` (and `completed`) means that it answers."""
    found = deployment.status_details
    state = DEPLOYMENT_STATES.get(found.status.lower(), JobState.UNKNOWN)
    return TrainingJobStatus(state=state, message=found.description or "", backend_state=found.status)


def losses(status: Status) -> dict[str, float]:
    """The losses of the best checkpoint, else the newest of the curve."""
    newest = {name: points[-1][1] for name, points in curves(status).items() if points}
    best = _said({"train_loss": status.train_loss, "val_loss": status.val_loss})
    return {**newest, **best}


def curves(status: Status) -> dict[str, list[tuple[int, float]]]:
    """Each metric by step; values that the service does not know are left out."""
    values = status.metrics.metrics if status.metrics is not None else None
    if values is None:
        return {}
    named = {
        "train_loss": values.train_loss,
        "val_loss": values.val_loss,
        "train_accuracy": values.train_accuracy,
        "val_accuracy": values.val_accuracy,
    }
    return {name: _points(given) for name, given in named.items() if given}


def log_lines(status: Status) -> list[str]:
    """What the service noted, oldest first."""
    return [log.line for log in _in_order(status) if log.line]


def _points(values: tuple[Value, ...]) -> list[tuple[int, float]]:
    return sorted((value.step, value.value) for value in values if value.step is not None and value.value is not None)


def _message(status: Status) -> str:
    """The last thing that the service noted in words: of a job that failed, why. A bare name of an event says nothing."""
    failed = JOB_STATES.get(status.status.lower()) is JobState.FAILED
    notes = [log for log in _in_order(status) if log.detail or (log.message and (failed or " " in log.message.strip()))]
    return ": ".join(text for text in (notes[-1].message, notes[-1].detail) if text) if notes else ""


def _in_order(status: Status) -> list[StatusLog]:
    """The service promises no order of its own."""
    return sorted(status.status_logs or (), key=lambda log: log.updated_at or "")


def _said(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
