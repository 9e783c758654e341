"""The jobs of a run, asked about and stopped from a process that did not submit them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from nat_finetune.compose import compose
from nat_finetune.config.load import LoadedConfig
from nat_finetune.errors import BackendError, ConfigError, OutputError, Problem
from nat_finetune.registry import Registry
from nat_finetune.remote.interfaces import RemoteAdapter
from nat_finetune.remote.polling import ENDED, described
from nat_finetune.remote.records import JobRecord, JobRecords, now
from nat_finetune.runstore import RunStore
from nat_finetune.types import JobState, TrainingJobRef


def job_of(store: RunStore, step: int | None = None) -> JobRecord:
    """The job of a step, or the last one of the run.

    Raises:
        ConfigError: the run has none that outlives its process.
    """
    found = [record for record in JobRecords(store).all() if record.outlives and step in (None, record.spec.step)]
    if not found:
        which = "no job" if step is None else f"no job of step {step}"
        hint = "a job is there once `nat-finetune run` has prepared one for an adapter whose jobs run elsewhere"
        raise ConfigError(Problem(f"this run has {which}", file=str(store.folder), hint=hint))
    return found[-1]


def require_attachable(store: RunStore) -> JobRecord:
    """The last job of a run that did not end in a failure.

    Raises:
        BackendError: it did: following it again changes nothing.
    """
    record = job_of(store)
    if record.status is not None and record.status.state in (JobState.FAILED, JobState.CANCELLED):
        job = record.ref.job_id if record.ref is not None else "of unknown id"
        raise BackendError(
            f"job {job} of step {record.spec.step} has ended: {described(record.status)}. To submit it anew, with the same "
            f"items: nat-finetune run --resume {store.folder}"
        )
    return record


class Away:
    """A run's adapter, and what is known of its jobs."""

    def __init__(self, adapter: RemoteAdapter, store: RunStore) -> None:
        self.adapter = adapter
        self._store = store

    async def submitted(self, record: JobRecord) -> tuple[JobRecord, TrainingJobRef]:
        """The record with the backend's reference, which is asked for where a crash lost it.

        Raises:
            BackendError: the backend has no such job.
        """
        ref = record.ref or await self.adapter.find(record.spec)
        if ref is None:
            raise BackendError(
                f"the job of step {record.spec.step} was prepared, but never reached the backend: nothing runs. To submit it: "
                f"nat-finetune run --resume {self._store.folder}"
            )
        return replace(record, ref=ref), ref

    async def asked(self, record: JobRecord) -> JobRecord:
        """The record with what the backend says now."""
        record, ref = await self.submitted(record)
        status = await self.adapter.status(ref)
        return self._kept(
            replace(record, status=status, ended_at=record.ended_at or (now() if status.state in ENDED else None))
        )

    async def cancelled(self, record: JobRecord) -> JobRecord:
        """Have the backend stop the job; what it says afterwards."""
        record, ref = await self.submitted(record)
        await self.adapter.cancel(ref)
        return await self.asked(record)

    async def logs(self, record: JobRecord) -> list[str]:
        """The backend's own lines."""
        _, ref = await self.submitted(record)
        return await self.adapter.logs(ref)

    def _kept(self, record: JobRecord) -> JobRecord:
        """Written down, unless a process works on the run: that one writes."""
        with suppress(OutputError), self._store.locked():
            JobRecords(self._store).write(record)
        return record


@asynccontextmanager
async def away(loaded: LoadedConfig, registry: Registry, store: RunStore) -> AsyncIterator[Away]:
    """A run's adapter, without the rest of the run.

    Raises:
        ConfigError: its jobs end with their process.
    """
    async with compose(loaded.config, registry, store.folder) as parts:
        adapter = await parts.get_trainer_adapter()
        if not isinstance(adapter, RemoteAdapter):
            key = f"trainer_adapters.{loaded.config.finetuning.trainer_adapter}"
            raise ConfigError(Problem("its jobs run in the process of the run and end with it", key))
        yield Away(adapter, store)
