"""What a finished job came to, for the run and its report."""

from __future__ import annotations

from typing import Any

from nat_finetune_plugins.nemo_customizer import answers
from nat_finetune_plugins.nemo_customizer.deployment import Deployed
from nat_finetune_plugins.nemo_customizer.statuses import curves, log_lines, losses

from nat_finetune.types import PolicyRef, TrainingJobRef, UpdateResult

LAST_LINES = 20


def update_result(
    policy: PolicyRef, ref: TrainingJobRef, job: answers.Job, status: answers.Status, deployed: Deployed | None
) -> UpdateResult:
    """The update as the service tells it; what it does not say is None."""
    return UpdateResult(
        policy=policy,
        tokens_trained=None,
        tokens_masked=None,
        optimiser_steps=status.steps_completed,
        metrics=_metrics(status),
        seconds=_seconds(status),
        curve=_curve(status),
        backend=_told(policy, ref, job, status, deployed),
    )


def _metrics(status: answers.Status) -> dict[str, float]:
    """The losses of the best checkpoint, `loss` being that of training."""
    found = losses(status)
    return {"loss" if name == "train_loss" else name: value for name, value in found.items()}


def _seconds(status: answers.Status) -> float:
    """As long as the service says; else from its first to its last word."""
    if status.elapsed_time is not None:
        return status.elapsed_time
    if status.created_at is None or status.updated_at is None:
        return 0.0
    return max(0.0, (status.updated_at - status.created_at).total_seconds())


def _curve(status: answers.Status) -> tuple[dict[str, float], ...]:
    """By optimiser step what was reported for it."""
    found: dict[int, dict[str, float]] = {}
    for name, points in curves(status).items():
        for step, value in points:
            found.setdefault(step, {"optimiser_step": float(step)})["loss" if name == "train_loss" else name] = value
    return tuple(found[step] for step in sorted(found))


def _told(
    policy: PolicyRef, ref: TrainingJobRef, job: answers.Job, status: answers.Status, deployed: Deployed | None
) -> dict[str, Any]:
    warnings = [str(warning.message if isinstance(warning, answers.Warned) else warning) for warning in job.warnings or ()]
    told: dict[str, Any] = {
        "service": "NeMo Customizer",
        "job_id": ref.job_id,
        "hosts": list(ref.metadata["hosts"]),
        "dataset": ref.metadata["dataset"],
        "revision": ref.metadata["revision"],
        "rows": {file["path"]: file["rows"] for file in ref.metadata["files"]},
        "output_model": job.output_model,
        "status": status.status,
        "best_epoch": status.best_epoch,
        "epochs_completed": status.epochs_completed,
        "losses": losses(status),
        "deployment": None if deployed is None else deployed.described(),
        "notes": [*ref.metadata["notes"], *warnings],
        "not_served": None if deployed is not None else "deploy_on_completion is off",
        "commands": [] if deployed is not None else [_how_to_measure(policy.llm, str(job.output_model))],
        "logs": log_lines(status)[-LAST_LINES:],
    }
    return {name: value for name, value in told.items() if value not in (None, [], {})}


def _how_to_measure(llm: str, model: str) -> str:
    return f"deploy {model}, then: nat-finetune eval CONFIG -o llms.{llm}.base_url=URL -o llms.{llm}.model_name={model}"
