"""`nat-finetune jobs`: the jobs that runs have with a backend, from any process, a crash or a day later."""

from __future__ import annotations

import asyncio
import json as jsonlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nat_finetune.cli.options import Json, RunFolder
from nat_finetune.cli.run import go_on
from nat_finetune.cli.runs import run_folders

if TYPE_CHECKING:
    from nat_finetune.remote.records import JobRecord
    from nat_finetune.remote_jobs import Away

jobs = typer.Typer(
    name="jobs",
    help="The jobs that runs have with a backend: list, status, attach, cancel, logs.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Step = Annotated[int | None, typer.Option(help="of the run's steps, whose job; left out: the last one", show_default=False)]


@jobs.command("list")
def list_jobs(
    folders: Annotated[list[Path] | None, typer.Argument(help="run folders, or directories that hold some")] = None,
    json: Json = False,
) -> None:
    """All jobs of runs as their folders know them; no backend is asked."""
    from nat_finetune.remote.records import JobRecords
    from nat_finetune.runstore import RunStore

    runs = [run for folder in folders or [Path("runs")] for run in run_folders(folder)]
    found = [(run, record) for run in runs for record in JobRecords(RunStore(run)).all() if record.outlives]
    if json:
        print(jsonlib.dumps([{"run": str(run), **_described(record)} for run, record in found]))
        return
    for run, record in found:
        print(f"{run} · {_line(record)}")
    if not found:
        print("no jobs: these runs had none that outlive their process")


@jobs.command()
def status(run: RunFolder, step: Step = None, json: Json = False) -> None:
    """What the backend says of a job now."""
    record = _with_backend(run, step, lambda backend, record: backend.asked(record))
    print(jsonlib.dumps(_described(record)) if json else _line(record))


@jobs.command()
def attach(run: RunFolder, json: Json = False) -> None:
    """Follow a run's job to its end, then go on with the run."""
    from nat_finetune.finetune import continued_run
    from nat_finetune.registry import Registry
    from nat_finetune.remote_jobs import require_attachable

    registry = Registry.installed()
    loaded, store = continued_run(run, registry)
    require_attachable(store)
    go_on(loaded, registry, store, json=json)


@jobs.command()
def cancel(run: RunFolder, step: Step = None, json: Json = False) -> None:
    """Have the backend stop a job."""
    record = _with_backend(run, step, lambda backend, record: backend.cancelled(record))
    print(jsonlib.dumps(_described(record)) if json else _line(record))


@jobs.command()
def logs(run: RunFolder, step: Step = None, json: Json = False) -> None:
    """The backend's own lines about a job."""
    lines = _with_backend(run, step, lambda backend, record: backend.logs(record))
    print(jsonlib.dumps(lines) if json else "\n".join(lines))


def _with_backend(run: Path, step: int | None, ask: Callable[[Away, JobRecord], Awaitable[Any]]) -> Any:
    from nat_finetune.config.load import load_config
    from nat_finetune.registry import Registry
    from nat_finetune.remote_jobs import away, job_of
    from nat_finetune.runstore import RunStore

    store, registry = RunStore.open(run), Registry.installed()
    record = job_of(store, step)
    loaded = load_config(run / "config.yml", registry=registry)

    async def asked() -> Any:
        async with away(loaded, registry, store) as backend:
            return await ask(backend, record)

    return asyncio.run(asked())


def _line(record: JobRecord) -> str:
    from nat_finetune.remote.polling import described

    job = "not known to have arrived" if record.ref is None else record.ref.job_id
    said = "no status yet" if record.status is None else described(record.status)
    return f"step {record.spec.step} · job {job} · {said}" + (f" · ended {record.ended_at}" if record.ended_at else "")


def _described(record: JobRecord) -> dict[str, Any]:
    ref, status = record.ref, record.status
    return {
        "step": record.spec.step,
        "job_id": ref.job_id if ref is not None else None,
        "adapter": record.spec.adapter,
        "state": status.state.value if status is not None else None,
        "backend_state": status.backend_state if status is not None else None,
        "progress": status.progress if status is not None else None,
        "message": status.message if status is not None else None,
        "metrics": dict(status.metrics) if status is not None else {},
        "submitted_at": record.submitted_at,
        "ended_at": record.ended_at,
        "earlier_jobs": [earlier.job_id for earlier in record.earlier],
    }
