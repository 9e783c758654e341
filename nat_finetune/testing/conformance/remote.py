"""What every remote adapter promises beside: a job is found by any process, started once, stopped, and holds no secret."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr
from pydantic_core import to_jsonable_python

from nat_finetune.config.component import TrainerAdapterConfig
from nat_finetune.errors import BackendError, NatFinetuneError
from nat_finetune.remote.interfaces import RemoteAdapter
from nat_finetune.remote.polling import ENDED
from nat_finetune.remote.records import JobRecord, JobRecords
from nat_finetune.runstore import RunStore
from nat_finetune.testing.chat import ScriptedChatModel
from nat_finetune.testing.conformance.report import Check, examine
from nat_finetune.testing.parts import FakeBuilder, made
from nat_finetune.types import Collection, JobState, PolicyRef, TrainingJobRef

Items = Callable[[], Collection]
"""A collection that the backend can train on."""


class ServedModel(ScriptedChatModel):
    """A chat model that can be pointed elsewhere, and remembers where to."""

    def __init__(self) -> None:
        super().__init__(lambda messages: "1")
        self.served: list[tuple[str | None, str, PolicyRef]] = []

    def served_at(self, *, base_url: str | None, model: str, api_key: str | None, policy: PolicyRef) -> None:
        """As `remote.interfaces.ServedChatModel.served_at`."""
        self.served.append((base_url, model, policy))


@dataclass(frozen=True, slots=True)
class RemoteCase:
    """An adapter's config, what it is given, and how its backend counts."""

    config: TrainerAdapterConfig
    items: Items
    jobs: Callable[[], int] | None
    folder: Path
    policies: Callable[[], AbstractContextManager[Any]] = nullcontext

    def work(self, about: str) -> Collection:
        """The items, in a run of their own: each promise has its own jobs."""
        return replace(self.items(), run_id=f"conformance-{about}")

    def with_adapter(self, use: Callable[[RemoteAdapter], Awaitable[Any]]) -> Any:
        """What `use` returns of a fresh adapter: another process, as far as it can tell."""

        async def once() -> Any:
            async with self._adapter() as adapter:
                return await use(adapter)

        return asyncio.run(once())

    @asynccontextmanager
    async def _adapter(self) -> AsyncIterator[RemoteAdapter]:
        with self.policies() as policy:
            builder = FakeBuilder(llms={"policy": ServedModel()}, folder=self.folder, policy=policy)
            async with made(self.config, builder) as adapter:
                if not isinstance(adapter, RemoteAdapter):
                    raise BackendError(f"{type(adapter).__name__} lacks what `remote.interfaces.RemoteAdapter` asks for")
                yield adapter


def check_remote_adapter(
    config: TrainerAdapterConfig,
    items: Items,
    *,
    jobs: Callable[[], int] | None = None,
    policies: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> list[str]:
    """Hold an adapter whose jobs outlive the process to its interface; call it where no event loop runs.

    Args:
        config: of the adapter, with the address of a stand-in of its backend that trains what it gets.
        items: a collection that it can train on; asked for often.
        jobs: how many jobs the stand-in has been given so far; without it starting twice is only seen by the ids.
        policies: a fresh `local.policy.LocalPolicy` each time, for an adapter that gives the weights of one to its backend.

    Returns:
        The promises that were looked at.

    Raises:
        ConformanceError: some are broken; names each.
    """
    with tempfile.TemporaryDirectory() as folder:
        case = RemoteCase(config, items, jobs, Path(folder), policies)
        return examine(f"remote trainer adapter {config.component_name!r}", case, CHECKS)


def _declared(case: RemoteCase) -> Iterator[str]:
    async def look(adapter: RemoteAdapter) -> None:
        await adapter.health()

    if not case.config.remote:
        yield "its config must say `remote: ClassVar[bool] = True`: without it nobody asks before a job is sent again"
    case.with_adapter(look)


def _once(case: RemoteCase) -> Iterator[str]:
    before = case.jobs() if case.jobs is not None else 0

    async def first(adapter: RemoteAdapter) -> tuple[TrainingJobRef, TrainingJobRef, Any]:
        spec = await adapter.prepare(case.work("once"), None)
        one = await adapter.submit(spec)
        return one, await adapter.submit(spec), spec

    async def second(adapter: RemoteAdapter) -> tuple[TrainingJobRef | None, TrainingJobRef, Any]:
        spec = await adapter.prepare(case.work("once"), None)
        found = await adapter.find(spec)
        again = await adapter.submit(spec)
        status = await adapter.wait(again)
        return found, again, (spec.key, status, await adapter.result(again))

    one, two, spec = case.with_adapter(first)
    found, three, (key, status, result) = case.with_adapter(second)
    if key != spec.key:
        yield "the same collection has another key in another process"
    if found is None:
        yield "another process does not find the job: `find` must ask the backend, not this process"
    if len({ref.job_id for ref in (one, two, three)}) > 1:
        yield f"the same spec has several jobs: {sorted({one.job_id, two.job_id, three.job_id})}"
    if case.jobs is not None and case.jobs() - before != 1:
        yield f"submitted three times, the backend was given {case.jobs() - before} jobs"
    if status.state is not JobState.COMPLETED:
        yield f"wait returned while the job is {status.state.value}: {status.message}"
    if result.policy.version != 1:
        yield f"one update makes version 1 of the policy, in another process too; found version {result.policy.version}"
    if not result.backend:
        yield "result.backend is empty: the report would not say what the backend did"


def _not_found(case: RemoteCase) -> Iterator[str]:
    async def look(adapter: RemoteAdapter) -> TrainingJobRef | None:
        return await adapter.find(await adapter.prepare(case.work("never-sent"), None))

    if case.with_adapter(look) is not None:
        yield "find names a job that was never submitted: nothing would be trained"


def _cancels(case: RemoteCase) -> Iterator[str]:
    async def look(adapter: RemoteAdapter) -> str | None:
        ref = await adapter.submit(await adapter.prepare(case.work("cancel"), None))
        await adapter.cancel(ref)
        status = await adapter.wait(ref)
        if status.state is JobState.COMPLETED:
            return None  # it was faster
        try:
            await adapter.result(ref)
        except NatFinetuneError:
            return None if status.state in ENDED else f"after cancel, wait returned while the job is {status.state.value}"
        return "a cancelled job has a result: raise BackendError"

    problem = case.with_adapter(look)
    if problem is not None:
        yield problem


def _written(case: RemoteCase) -> Iterator[str]:
    async def look(adapter: RemoteAdapter) -> tuple[JobRecord, Any]:
        spec = await adapter.prepare(case.work("written"), None)
        ref = await adapter.submit(spec)
        status = await adapter.wait(ref)
        return JobRecord(spec, ref, status), (await adapter.result(ref), await adapter.logs(ref))

    record, rest = case.with_adapter(look)
    records = JobRecords(RunStore.create(case.folder / "run"))
    try:
        json.dumps([asdict(record), asdict(rest[0])])
    except (TypeError, ValueError) as error:
        yield f"spec, reference, status or result can't be written down: {error}"
    records.write(record)
    if to_jsonable_python(records.read(record.spec.step)) != to_jsonable_python(record):
        yield "spec, reference and status don't come back from the run folder as they were"
    text = json.dumps(to_jsonable_python([record, rest]))
    yield from (f"{name} is in what the run folder holds" for name, secret in _secrets(case.config) if secret in text)


def _strangers(case: RemoteCase) -> Iterator[str]:
    async def look(adapter: RemoteAdapter) -> str | None:
        spec = await adapter.prepare(case.work("stranger"), None)
        try:
            status = await adapter.status(TrainingJobRef("no-such-job", "no-such-key", spec.adapter, dict(spec.payload)))
        except BackendError:
            return None
        return "a job that never was has completed" if status.state is JobState.COMPLETED else None

    problem = case.with_adapter(look)
    if problem is not None:
        yield problem


def _secrets(config: BaseModel) -> Iterator[tuple[str, str]]:
    for name in type(config).model_fields:
        value = config.__dict__[name]
        if isinstance(value, SecretStr) and value.get_secret_value():
            yield name, value.get_secret_value()
        elif isinstance(value, BaseModel):
            yield from ((f"{name}.{below}", secret) for below, secret in _secrets(value))


CHECKS: dict[str, Check[RemoteCase]] = {
    "says that its jobs outlive the process": _declared,
    "starts a job once, whatever process asks": _once,
    "finds no job that was never sent": _not_found,
    "cancels": _cancels,
    "can be written down, without secrets": _written,
    "names jobs that it does not know": _strangers,
}
