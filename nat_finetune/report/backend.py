"""What a service or another process did in this run: one part for each job that outlives the process that sent it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nat_finetune.remote.records import JobRecord, JobRecords
from nat_finetune.runstore import RunStore

_FIRST = ("step", "job_id", "adapter", "service", "hosts", "status", "message", "output_model")
"""What is said first; the rest follows in the adapter's order."""
_LAST = ("commands", "logs")


def backend_part(store: RunStore) -> list[dict[str, Any]]:
    """The remote jobs of a run in the order of their steps, as the report shows them; empty where all was done here."""
    jobs = (_described(record, store) for record in JobRecords(store).all() if record.outlives)
    return [_ordered(job) for job in jobs]


def backend_lines(job: Mapping[str, Any]) -> list[str]:
    """A job in a line, what is worth knowing of it, and the commands to go on with what it made."""
    notes = [f"  note: {note}" for note in job.get("notes") or ()]
    commands = [f"  {command}" for command in job.get("commands") or ()]
    return [backend_line(job), *notes, *(["  to go on:", *commands] if commands else [])]


def backend_line(job: Mapping[str, Any]) -> str:
    """A job in one line."""
    parts = [f"backend: step {job['step']}", f"job {job['job_id'] or 'unknown: it may not have been sent'}", job["status"]]
    parts += [f"made {job['output_model']}"] if job.get("output_model") else []
    parts += [f"{name} {value:.4g}" for name, value in (job.get("losses") or {}).items() if isinstance(value, int | float)]
    return ", ".join(str(part) for part in parts if part)


def made_elsewhere(store: RunStore) -> str:
    """What a backend that keeps its weights made last, in its own words, and the commands to go on with it."""
    made = [job for job in backend_part(store) if job.get("output_model")]
    if not made:
        return "its model is not `_type: local`, and no backend has made one yet"
    last = made[-1]
    named = [str(last["output_model"]), *(str(last[key]) for key in ("checkpoint", "deployment") if last.get(key))]
    commands = [f"  {command}" for command in last.get("commands") or ()]
    where = f"{last.get('service') or last['adapter']} keeps what it trained: {', '.join(dict.fromkeys(named))}"
    return "\n".join([where, *(["to go on with it:", *commands] if commands else [])])


def _described(record: JobRecord, store: RunStore) -> dict[str, Any]:
    ref, status, update = record.ref, record.status, store.update_result(record.spec.step)
    return {
        "step": record.spec.step,
        "job_id": ref.job_id if ref is not None else None,
        "adapter": record.spec.adapter,
        "items": record.spec.items,
        "status": (status.backend_state or status.state.value) if status is not None else None,
        "message": (status.message or None) if status is not None else None,
        "losses": dict(status.metrics) if status is not None else {},
        "submitted_at": record.submitted_at,
        "ended_at": record.ended_at,
        "earlier_jobs": [earlier.job_id for earlier in record.earlier],
        "logs": list(record.logs),
        **(update.backend if update is not None else {}),
    }


def _ordered(job: Mapping[str, Any]) -> dict[str, Any]:
    names = [*(n for n in _FIRST if n in job), *(n for n in job if n not in _FIRST + _LAST), *(n for n in _LAST if n in job)]
    return {name: job[name] for name in names}
