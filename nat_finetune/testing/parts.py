"""One component by itself: what its factory gets in place of a run, and its factory found from its config."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nat_finetune.config.component import ComponentConfig
from nat_finetune.errors import BackendError, ConfigError
from nat_finetune.interfaces import ChatModel, Evaluator
from nat_finetune.live import LiveComponent
from nat_finetune.registry import CONFIG_BASES, Registration, Registry
from nat_finetune.testing.rollouts import WORKFLOW
from nat_finetune.tracing.traced import TracedChatModel, TracedFunction
from nat_finetune.types import RewardTerm, Target

REWARD = "outcome"
"""The reward of sample rollouts."""
TARGET = Target((WORKFLOW,), "policy", (RewardTerm(REWARD),))
"""What a component under test is told to train."""
_EMPTY: Mapping[str, Any] = MappingProxyType({})


class FakeBuilder:
    """Implements `interfaces.Builder`: the other entries are what the test gives, by name."""

    def __init__(
        self,
        *,
        llms: Mapping[str, ChatModel] = _EMPTY,
        functions: Mapping[str, Callable[..., Awaitable[Any]]] = _EMPTY,
        ttc_strategies: Mapping[str, Any] = _EMPTY,
        evaluators: Mapping[str, Evaluator] = _EMPTY,
        policy: Any = None,
        target: Target = TARGET,
        seed: int = 0,
        folder: Path | None = None,
        entry_name: str = "tested",
    ) -> None:
        self._llms = {name: TracedChatModel(llm, seeded=False) for name, llm in llms.items()}
        self._functions = {name: TracedFunction(name, function) for name, function in functions.items()}
        self._ttc_strategies = ttc_strategies
        self._evaluators = evaluators
        self._policy = policy
        self.target = target
        self.seed = seed
        self.deterministic = False
        self.folder = folder
        self.entry_name = entry_name

    async def get_llm(self, name: str) -> ChatModel:
        """A given chat model, its calls recorded."""
        llm: ChatModel = _entry("llms", self._llms, name)
        return llm

    async def get_function(self, name: str) -> TracedFunction:
        """A given function, its calls recorded under its name."""
        function: TracedFunction = _entry("functions", self._functions, name)
        return function

    async def get_ttc_strategy(self, name: str) -> Any:
        """A given strategy."""
        return _entry("ttc_strategies", self._ttc_strategies, name)

    async def get_evaluator(self, name: str) -> Evaluator:
        """A given evaluator."""
        evaluator: Evaluator = _entry("evaluators", self._evaluators, name)
        return evaluator

    async def get_policy(self) -> Any:
        """The given `local.policy.LocalPolicy`.

        Raises:
            BackendError: none was given.
        """
        if self._policy is None:
            raise BackendError("FakeBuilder was given no policy: pass policy=")
        return self._policy


def _entry(section: str, entries: Mapping[str, Any], name: str) -> Any:
    if name not in entries:
        raise ConfigError(f"FakeBuilder has no {section}.{name}: pass {section}={{{name!r}: ...}}")
    return entries[name]


def registration_of(config: ComponentConfig) -> Registration:
    """The factory of a config: of the module that defines the config, else of whatever is installed.

    Raises:
        ConfigError: nothing registers a factory for it.
    """
    near = Registry()
    near.add_module(sys.modules[type(config).__module__], origin="this test")
    registration = _among(near, config) or _among(Registry.installed(), config)
    if registration is not None:
        return registration
    kind = next(kind for kind, base in CONFIG_BASES.items() if isinstance(config, base))
    raise ConfigError(f"no factory is registered for {type(config).__name__}: mark one of {kind.value} with @register_...")


def _among(registry: Registry, config: ComponentConfig) -> Registration | None:
    return next((known for known in registry if known.config_type is type(config)), None)


@asynccontextmanager
async def made(config: ComponentConfig, builder: FakeBuilder) -> AsyncIterator[Any]:
    """What the factory of a config yields, cleaned up at the end."""
    async with LiveComponent(registration_of(config), builder.entry_name, config, builder) as component:
        yield component
