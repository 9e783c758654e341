"""One update as a job of the adapter: written down before it is sent, so that what a crash leaves behind is known.

A job of this process ends with it, and is prepared and run again. A remote one (`remote.interfaces.RemoteAdapter`) goes on: its
record says whether it was sent. With a reference it is re-attached; without one the backend is asked for its key, and only
where it knows none is the job sent. A job that was seen to fail is sent again by the next resume, under a key of its own.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from nat_finetune.errors import BackendError, Detached, Interrupted, JobGoesOn, OutOfReach
from nat_finetune.interfaces import TrainerAdapter
from nat_finetune.remote.interfaces import RemoteAdapter, StreamedAdapter
from nat_finetune.remote.polling import ENDED, described
from nat_finetune.remote.records import JobRecord, JobRecords, attach_command, now
from nat_finetune.report.progress import NullProgress, Progress
from nat_finetune.runstore import RunStore
from nat_finetune.types import (
    Collection,
    Dropped,
    JobSpec,
    JobState,
    PolicyRef,
    TrainingJobRef,
    TrainingJobStatus,
    UpdateResult,
)

SUBMISSIONS = 3
"""Most attempts at one submission; before each further one the backend is asked whether the last has arrived."""
SHOWN_LOGS = 20
"""Last lines of a backend's log that are kept with a job, and shown where it failed."""


def leave_it(job: str) -> bool:
    """After Ctrl-C, whether to cancel a remote job, where nobody can be asked: it goes on."""
    return False


@dataclass(frozen=True, slots=True)
class Jobs:
    """The updates of one run."""

    adapter: TrainerAdapter
    store: RunStore
    progress: Progress = field(default_factory=NullProgress)
    cancel_wanted: Callable[[str], bool] = leave_it
    """Asked after Ctrl-C while a remote job runs, with its name: whether to cancel it; else it is left to run."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def run(
        self, collection: Collection, reference: PolicyRef | None, *, wait: bool = True
    ) -> tuple[UpdateResult, tuple[Dropped, ...]]:
        """What the update did, and which items the backend could not take.

        Raises:
            Detached: the job was left to run: `wait` is off and it was just sent, or Ctrl-C.
            NatFinetuneError: as the adapter ended it; of a remote job with its last log lines.
        """
        await self.adapter.health()
        record, sent = await self._submitted(collection, reference)
        ref = _ref(record)
        if sent and not wait and record.outlives:
            raise Detached(f"job {ref.job_id} of step {record.spec.step} goes on without this process. {self._attach}")
        try:
            result = await self._ended(record)
        except asyncio.CancelledError:
            if not isinstance(self.adapter, RemoteAdapter):
                await self.adapter.cancel(ref)
                raise
            raise await self._left(self.adapter, record) from None
        self.store.save_update(collection.step, result)
        return result, record.spec.dropped

    def submitted_from(self, step: int) -> bool:
        """Whether this step's items went into a job that outlives the process: then they must stay as they are."""
        return any(record.outlives and record.spec.step >= step for record in self._records.all())

    # ----------------------------------------------------------------------------------------------------------- submission

    async def _submitted(self, collection: Collection, reference: PolicyRef | None) -> tuple[JobRecord, bool]:
        """The job's record with a reference, and whether it was sent just now."""
        adapter, before = self.adapter, self._records.read(collection.step)
        if not isinstance(adapter, RemoteAdapter):
            spec = await adapter.prepare(collection, reference)
            record = self._records.write(JobRecord(spec))
            return self._records.write(replace(record, ref=await adapter.submit(spec), submitted_at=now())), True
        if before is not None and before.ref is None:
            before = await self._found(adapter, before)
        if before is not None and before.ref is not None and not _failed(before):
            if not isinstance(adapter, StreamedAdapter) or not await adapter.lost(before.ref):
                return before, False
            status = TrainingJobStatus(JobState.FAILED, None, "it ended with the process that read its stream")
            before = self._records.write(replace(before, status=status, ended_at=now()))
        spec = await adapter.prepare(collection, reference)
        earlier: tuple[TrainingJobRef, ...] = ()
        if before is not None:
            earlier = before.earlier if before.ref is None else (*before.earlier, before.ref)
        record = self._records.write(JobRecord(_attempt(spec, len(earlier)), outlives=True, earlier=earlier))
        return await self._send(adapter, record), True

    async def _found(self, adapter: RemoteAdapter, record: JobRecord) -> JobRecord:
        """The record of a job that may have been sent, with the reference that the backend has of it, if any."""
        ref = await adapter.find(record.spec)
        return record if ref is None else self._records.write(replace(record, ref=ref, submitted_at=now()))

    async def _send(self, adapter: RemoteAdapter, record: JobRecord) -> JobRecord:
        for attempt in range(1, SUBMISSIONS + 1):
            try:
                ref = await adapter.submit(record.spec)
            except BackendError as error:
                if not error.transient or attempt == SUBMISSIONS:
                    raise
                await self.sleep(2.0 ** (attempt - 1))  # what is still on its way arrives meanwhile
                record = await self._found(adapter, record)
                if record.ref is not None:
                    return record
            else:
                return self._records.write(replace(record, ref=ref, submitted_at=now()))
        raise AssertionError("the last attempt returns or raises")

    # ------------------------------------------------------------------------------------------------------------------ end

    async def _ended(self, record: JobRecord) -> UpdateResult:
        """Follow the job to its end, keep what is seen of it, and have its result."""
        adapter, ref = self.adapter, _ref(record)
        if not isinstance(adapter, RemoteAdapter):
            await adapter.wait(ref)
            return await adapter.result(ref)

        def seen(status: TrainingJobStatus) -> None:
            self.progress.job_status(record.spec.step, ref, status)
            self._records.write(replace(record, status=status))

        try:
            status = await adapter.wait(ref, on_status=seen)
        except (JobGoesOn, OutOfReach) as error:
            raise type(error)(f"{error}. {self._attach}") from error
        logs = await _last_lines(adapter, ref)
        record = self._records.write(replace(record, status=status, ended_at=now(), logs=logs))
        try:
            result = await adapter.result(ref)
        except BackendError as error:
            if not _failed(record):  # the job is done, what comes after it is not: it can be asked for again
                raise BackendError(f"{error}. {self._attach}") from error
            resume = f"To send it anew, once what failed is mended: {self._resume}"
            raise BackendError("\n".join([str(error), resume, *_quoted(logs)])) from error
        return replace(result, backend={**_about(record), **result.backend})

    async def _left(self, adapter: RemoteAdapter, record: JobRecord) -> Detached | Interrupted:
        """What Ctrl-C ends the run with: the job is left to run, or cancelled."""
        task, ref = asyncio.current_task(), _ref(record)
        if task is not None:
            task.uncancel()
        where = f"job {ref.job_id} of step {record.spec.step}"
        if not self.cancel_wanted(where):
            return Detached(f"{where} goes on without this process. {self._attach}")
        await adapter.cancel(ref)
        status = await adapter.status(ref)
        ended_at = now() if status.state in ENDED else None
        self._records.write(replace(record, status=status, ended_at=ended_at))
        return Interrupted(f"{where} is {described(status)}. What was finished is kept; to submit it anew: {self._resume}")

    @property
    def _records(self) -> JobRecords:
        return JobRecords(self.store)

    @property
    def _resume(self) -> str:
        return f"nat-finetune run --resume {self.store.folder}"

    @property
    def _attach(self) -> str:
        return f"To go on: {attach_command(self.store.folder)}"


def _ref(record: JobRecord) -> TrainingJobRef:
    if record.ref is None:
        raise BackendError(f"the job of step {record.spec.step} was not submitted")
    return record.ref


def _failed(record: JobRecord) -> bool:
    """Whether its end was seen, and there is no result."""
    return record.status is not None and record.status.state in (JobState.FAILED, JobState.CANCELLED)


def _attempt(spec: JobSpec, number: int) -> JobSpec:
    """The spec of a further attempt after `number` jobs that failed, under a key that no job has had."""
    return spec if not number else replace(spec, key=hashlib.sha256(f"{spec.key} {number}".encode()).hexdigest())


async def _last_lines(adapter: RemoteAdapter, ref: TrainingJobRef) -> tuple[str, ...]:
    """Of the backend's log; what can't be had is not worth the run."""
    try:
        return tuple((await adapter.logs(ref))[-SHOWN_LOGS:])
    except BackendError as error:
        return (f"(no log: {error})",)


def _quoted(lines: tuple[str, ...]) -> list[str]:
    return ["the backend's last lines:", *(f"  {line}" for line in lines)] if lines else []


def _about(record: JobRecord) -> dict[str, object]:
    """What every backend part of a report says, whatever the adapter adds."""
    ref = _ref(record)
    about: dict[str, object] = {"job_id": ref.job_id, "adapter": ref.adapter, "logs": list(record.logs)}
    if record.status is not None:
        about |= {"status": record.status.backend_state or record.status.state.value, "losses": dict(record.status.metrics)}
    return about
