"""The same components on less data: what a run in small is made with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

from nat_finetune.config.component import EvalDatasetBaseConfig, TrainerAdapterConfig
from nat_finetune.config.schema import RunConfig
from nat_finetune.interfaces import TrainerAdapter
from nat_finetune.registry import Factory, Kind, Registration, Registry
from nat_finetune.types import (
    Collection,
    Example,
    JobSpec,
    JobState,
    PolicyRef,
    Record,
    TrainingJobRef,
    TrainingJobStatus,
    UpdateResult,
)


def with_factories(registry: Registry, change: Callable[[Registration], Factory | None]) -> Registry:
    """The registry with other factories for some components."""
    changed = Registry()
    for known in registry:
        factory = change(known)
        changed.add(known if factory is None else replace(known, factory=factory))
    return changed


@dataclass(frozen=True, slots=True)
class _Few:
    """A dataset's first examples, or records."""

    inner: Any
    examples: int
    most_records: int

    def load(self) -> Iterator[Example]:
        return islice(self.inner.load(), self.examples)

    def records(self) -> Iterator[Record]:
        return islice(self.inner.records(), self.most_records)


def first_examples(registry: Registry, examples: int, *, records: int = 16) -> Registry:
    """The registry with loaders that end after so many examples, or records."""

    def change(known: Registration) -> Factory | None:
        if known.kind is not Kind.DATASET:
            return None

        async def few(config: EvalDatasetBaseConfig, builder: Any) -> AsyncIterator[Any]:
            async with asynccontextmanager(known.factory)(config, builder) as loader:
                yield _Few(loader, examples, records)

        return few

    return with_factories(registry, change)


class _NoUpdate:
    """In place of a remote adapter: every update is done at once, and nothing is sent anywhere."""

    def __init__(self, llm: str) -> None:
        self._llm = llm
        self._version = 0

    async def health(self) -> None:
        pass

    async def prepare(self, collection: Collection, reference: PolicyRef | None) -> JobSpec:
        return JobSpec(collection.run_id, collection.step, f"none {collection.step}", "none", len(collection.items))

    async def submit(self, spec: JobSpec) -> TrainingJobRef:
        return TrainingJobRef("none", spec.key, spec.adapter)

    async def status(self, ref: TrainingJobRef) -> TrainingJobStatus:
        return TrainingJobStatus(JobState.COMPLETED)

    async def wait(self, ref: TrainingJobRef) -> TrainingJobStatus:
        return await self.status(ref)

    async def cancel(self, ref: TrainingJobRef) -> None:
        pass

    async def logs(self, ref: TrainingJobRef) -> list[str]:
        return []

    async def result(self, ref: TrainingJobRef) -> UpdateResult:
        self._version += 1
        return UpdateResult(PolicyRef(self._llm, self._version), None, None, None, {}, 0.0)

    def save_state(self, folder: Path) -> None:
        pass

    def load_state(self, folder: Path) -> None:
        pass


def without_remote_updates(registry: Registry) -> Registry:
    """The registry with stand-ins for adapters whose jobs run elsewhere: a look at a config must not start one."""

    def change(known: Registration) -> Factory | None:
        if known.kind is not Kind.TRAINER_ADAPTER or not cast(type[TrainerAdapterConfig], known.config_type).remote:
            return None

        async def none(config: TrainerAdapterConfig, builder: Any) -> AsyncIterator[TrainerAdapter]:
            yield _NoUpdate(builder.target.llm)

        async def serving(config: TrainerAdapterConfig, builder: Any) -> AsyncIterator[TrainerAdapter]:
            async for _ in known.factory(config, builder):  # it makes the target model reachable
                yield _NoUpdate(builder.target.llm)

        return serving if cast(type[TrainerAdapterConfig], known.config_type).serves_target else none

    return with_factories(registry, change)


def without_split(config: RunConfig) -> list[str]:
    """Overrides for a config that splits its examples: a few of them can't be split, so none is held out."""
    split = config.finetuning.split
    if split is None or not (split.validation or split.test):
        return []
    return ["finetuning.split=null", "finetuning.validation=null", "finetuning.test=null"]
