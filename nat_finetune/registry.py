"""Components by name: `@register_*` marks a factory, a `Registry` collects what modules and plugins mark.

A component is one decorated async generator `(config, builder)` that yields one instance and may clean up after it:

    class GreeterConfig(FunctionBaseConfig, name="greeter"):
        llm: LLMRef

    @register_function(config_type=GreeterConfig)
    async def greeter(config, builder):
        llm = await builder.get_llm(config.llm)

        async def greet(example):
            return (await llm.chat([{"role": "user", "content": f"Greet {example.input}"}])).text

        yield greet

Marking changes no global state. A plugin names its module under the entry-point group `nat_finetune.components`; the
registry imports it and takes every marked factory of its namespace. A plugin that fails to import does not stop the
others: the failure is kept and raised, traceback included, when something is asked for that is not found.
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any, TypeVar

from nat_finetune import __version__
from nat_finetune.config.component import (
    ComponentConfig,
    EvalDatasetBaseConfig,
    EvaluatorBaseConfig,
    FunctionBaseConfig,
    LLMBaseConfig,
    TrainerAdapterConfig,
    TrainerConfig,
    TrajectoryBuilderConfig,
    TTCStrategyBaseConfig,
)
from nat_finetune.errors import ConfigError, Problem

ENTRY_POINT_GROUP = "nat_finetune.components"

BUILT_IN_MODULES = (
    "nat_finetune.llms.local",
    "nat_finetune.llms.openai",
    "nat_finetune.datasets.files",
    "nat_finetune.datasets.parquet",
    "nat_finetune.builders.grpo",
    "nat_finetune.builders.sft",
    "nat_finetune.builders.dpo",
    "nat_finetune.builders.preference",
    "nat_finetune.adapters.local",
    "nat_finetune.evaluators.exact_match",
    "nat_finetune.evaluators.json_schema",
    "nat_finetune.evaluators.llm_judge",
    "nat_finetune.evaluators.numeric_match",
    "nat_finetune.evaluators.python",
    "nat_finetune.evaluators.regex",
    "nat_finetune.trainers.backend",
    "nat_finetune.trainers.on_policy",
    "nat_finetune.trainers.preference",
)


class Kind(StrEnum):
    """Kinds of components, by the section of the config in which they stand."""

    FUNCTION = "functions"
    LLM = "llms"
    EVALUATOR = "evaluators"
    DATASET = "datasets"
    TTC_STRATEGY = "ttc_strategies"
    TRAJECTORY_BUILDER = "trajectory_builders"
    TRAINER_ADAPTER = "trainer_adapters"
    TRAINER = "trainers"


CONFIG_BASES: dict[Kind, type[ComponentConfig]] = {
    Kind.FUNCTION: FunctionBaseConfig,
    Kind.LLM: LLMBaseConfig,
    Kind.EVALUATOR: EvaluatorBaseConfig,
    Kind.DATASET: EvalDatasetBaseConfig,
    Kind.TTC_STRATEGY: TTCStrategyBaseConfig,
    Kind.TRAJECTORY_BUILDER: TrajectoryBuilderConfig,
    Kind.TRAINER_ADAPTER: TrainerAdapterConfig,
    Kind.TRAINER: TrainerConfig,
}

Factory = Callable[[Any, Any], AsyncIterator[Any]]
F = TypeVar("F", bound=Factory)


@dataclass(frozen=True, slots=True)
class Registration:
    """A marked factory."""

    kind: Kind
    name: str
    config_type: type[ComponentConfig]
    factory: Factory
    origin: str
    """Distribution and version that it comes from, such as `nat-finetune 0.1.0`."""

    @property
    def place(self) -> str:
        """Where the factory is defined: `module.function (distribution)`."""
        return f"{self.factory.__module__}.{self.factory.__qualname__} ({self.origin})"

    @property
    def summary(self) -> str:
        """First line of the config's docstring."""
        return (self.config_type.__doc__ or "").strip().split("\n")[0]


@dataclass(frozen=True, slots=True)
class BrokenPlugin:
    """An entry point that could not be loaded."""

    name: str
    value: str
    origin: str
    traceback: str

    @property
    def reason(self) -> str:
        """Last line of the traceback: the error itself."""
        return self.traceback.strip().rsplit("\n", 1)[-1]


def _decorator(kind: Kind) -> Callable[..., Callable[[F], F]]:
    def register(config_type: type[ComponentConfig]) -> Callable[[F], F]:
        """Mark a factory, an async generator `(config, builder)` that yields one component, as that of `config_type`.

        Raises:
            TypeError: `config_type` is of another kind of component, or has no name.
        """
        base = CONFIG_BASES[kind]
        if not (isinstance(config_type, type) and issubclass(config_type, base)):
            raise TypeError(f"@register for {kind.value}: config_type must be a subclass of {base.__name__}: {config_type!r}")
        if not config_type.component_name:
            raise TypeError(f'{config_type.__name__} has no name: write `class {config_type.__name__}(…, name="…")`')

        def mark(factory: F) -> F:
            vars(factory)["__registration__"] = (kind, config_type)
            return factory

        return mark

    return register


register_function = _decorator(Kind.FUNCTION)
register_llm_provider = _decorator(Kind.LLM)
register_evaluator = _decorator(Kind.EVALUATOR)
register_dataset_loader = _decorator(Kind.DATASET)
register_ttc_strategy = _decorator(Kind.TTC_STRATEGY)
register_trajectory_builder = _decorator(Kind.TRAJECTORY_BUILDER)
register_trainer_adapter = _decorator(Kind.TRAINER_ADAPTER)
register_trainer = _decorator(Kind.TRAINER)


class Registry:
    """Components by kind and name. Make one with `Registry.installed()`, or an empty one in a test."""

    def __init__(self) -> None:
        self._components: dict[tuple[Kind, str], Registration] = {}
        self.broken: list[BrokenPlugin] = []

    @classmethod
    def installed(cls) -> Registry:
        """What nat-finetune ships and every installed plugin."""
        registry = cls()
        for name in BUILT_IN_MODULES:
            registry.add_module(importlib.import_module(name), origin=f"nat-finetune {__version__}")
        registry.add_plugins(entry_points(group=ENTRY_POINT_GROUP))
        return registry

    def add_plugins(self, points: Iterable[EntryPoint]) -> None:
        """Import each entry point's module; a failure is kept in `broken`."""
        for point in sorted(points, key=lambda p: (p.name, p.value)):
            origin = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
            try:
                module = importlib.import_module(point.module)
            except (Exception, SystemExit):  # noqa: BLE001 - third-party code at import; kept whole, shown when asked for
                self.broken.append(BrokenPlugin(point.name, point.value, origin, traceback.format_exc()))
                continue
            self.add_module(module, origin=origin)

    def add_module(self, module: ModuleType, *, origin: str) -> None:
        """Take every marked factory of a module's namespace."""
        for value in list(vars(module).values()):
            marked = getattr(value, "__registration__", None)
            if isinstance(marked, tuple):
                kind, config_type = marked
                self.add(Registration(kind, config_type.component_name, config_type, value, origin))

    def add(self, registration: Registration) -> None:
        """Add one component.

        Raises:
            ConfigError: another component of this kind has the name.
        """
        key = (registration.kind, registration.name)
        known = self._components.get(key)
        if known is not None and known.factory is not registration.factory:
            raise ConfigError(
                f"two components of {registration.kind.value} are named {registration.name!r}: "
                f"{known.place} and {registration.place}; rename one or uninstall its package"
            )
        self._components[key] = registration

    def get(self, kind: Kind, name: str) -> Registration:
        """The component of this name.

        Raises:
            ConfigError: there is none; names the nearest, and the plugins that failed to import.
        """
        try:
            return self._components[kind, name]
        except KeyError:
            raise ConfigError(self.not_found(kind, name)) from None

    def not_found(self, kind: Kind, name: str) -> Problem:
        """What to say of a `_type` that no component has."""
        names = self.names(kind)
        near = get_close_matches(name.rpartition("/")[2], names, n=1)  # NAT also writes `package/name`
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names) or 'none'}"
        message = f"no component of {kind.value} has the _type {name!r}"
        for plugin in self.broken:
            message += f"\nthe plugin {plugin.name} = {plugin.value} ({plugin.origin}) failed to import:\n{plugin.traceback}"
        return Problem(message, hint=hint)

    def names(self, kind: Kind) -> list[str]:
        """Names of one kind, sorted."""
        return sorted(name for k, name in self._components if k is kind)

    def __iter__(self) -> Iterator[Registration]:
        return iter(sorted(self._components.values(), key=lambda r: (r.kind.value, r.name)))
