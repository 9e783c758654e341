"""One component from its factory's `yield` to its clean-up; what a factory raises is told by name and place."""

from __future__ import annotations

from contextlib import asynccontextmanager
from inspect import isasyncgenfunction
from types import TracebackType
from typing import Any

from nat_finetune.config.component import ComponentConfig
from nat_finetune.errors import BackendError, ConfigError, NatFinetuneError, Problem, Stage, StageError, boundary
from nat_finetune.interfaces import Builder
from nat_finetune.registry import Kind, Registration

_BACKENDS = frozenset({Kind.LLM, Kind.TRAINER_ADAPTER})


class LiveComponent:
    """Context manager of one entry's component.

    Raises:
        ConfigError: the factory is no async generator, or fails: before it yields, or when it cleans up after a run that did
            not fail itself. (BackendError for models and trainer adapters.)
    """

    def __init__(self, registration: Registration, entry: str, config: ComponentConfig, builder: Builder) -> None:
        self._registration = registration
        self._entry = entry
        self._arguments = (config, builder)

    async def __aenter__(self) -> Any:
        registration = self._registration
        if not isasyncgenfunction(registration.factory):
            hint = "write `async def`, and `yield` the instance"
            raise ConfigError(Problem(f"{registration.place} is no async generator", key=self._key, hint=hint))
        self._manager = asynccontextmanager(registration.factory)(*self._arguments)
        try:
            with boundary(Stage.WORKFLOW):
                return await self._manager.__aenter__()
        except StageError as error:
            raise self._failed("could not be made", error) from error

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Clean up. An error that ends the run is neither swallowed by a component nor replaced by one of its clean-up."""
        try:
            with boundary(Stage.WORKFLOW):
                await self._manager.__aexit__(kind, error, trace)
        except StageError as failure:
            if error is None:
                raise self._failed("failed when it cleaned up", failure) from failure
        return False

    @property
    def _key(self) -> str:
        return self._entry if self._entry.startswith("<") else f"{self._registration.kind.value}.{self._entry}"

    def _failed(self, what: str, error: StageError) -> NatFinetuneError:
        message = f"{self._registration.place} {what}: {error.error_type}: {error}"
        if self._registration.kind in _BACKENDS:
            return BackendError(f"{self._key}: {message}")
        return ConfigError(Problem(message, key=self._key, hint="--debug shows where"))
