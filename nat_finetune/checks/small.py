"""The same components on less data: what a run in small is made with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from nat_finetune.config.component import EvalDatasetBaseConfig
from nat_finetune.config.schema import RunConfig
from nat_finetune.registry import Factory, Kind, Registration, Registry
from nat_finetune.types import Example, Record


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


def without_split(config: RunConfig) -> list[str]:
    """Overrides for a config that splits its examples: a few of them can't be split, so none is held out."""
    split = config.finetuning.split
    if split is None or not (split.validation or split.test):
        return []
    return ["finetuning.split=null", "finetuning.validation=null", "finetuning.test=null"]
