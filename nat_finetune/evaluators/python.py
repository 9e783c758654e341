"""`python`: the score is what a function of yours says.

The config names it, `module:function`; it must be importable from the environment that nat-finetune runs in. Nothing else that
stands in a config is executed.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from nat_finetune.config.component import EvaluatorBaseConfig
from nat_finetune.config.problems import nearest
from nat_finetune.errors import ConfigError, Problem, Stage, StageError, boundary
from nat_finetune.interfaces import Builder, Evaluator
from nat_finetune.registry import register_evaluator
from nat_finetune.types import Example, Rollout, Score, ScoreRange


class PythonConfig(EvaluatorBaseConfig, name="python"):
    """What a function `(example, rollout)` of an installed module returns: a number, a Score, or None for unknown."""

    function: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*[:.][A-Za-z_]\w*$")]
    """`module:function` or `module.function`; `async def` or not. One that is not async runs in a thread of its own."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Further keyword arguments of the function."""
    low: float | None = None
    """The lowest score that it can give, where it has one."""
    high: float | None = None
    """The highest."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        ScoreRange(self.low, self.high)
        return self


@dataclass(frozen=True, slots=True)
class FunctionEvaluator:
    """Asks a function."""

    function: Callable[..., Any]
    score_range: ScoreRange
    arguments: dict[str, Any] = field(default_factory=dict)

    async def __call__(self, example: Example, rollout: Rollout) -> float | Score | None:
        """What it says."""
        if inspect.iscoroutinefunction(self.function):
            said = await self.function(example, rollout, **self.arguments)
        else:
            said = await asyncio.to_thread(self.function, example, rollout, **self.arguments)
            said = await said if inspect.isawaitable(said) else said
        answer: float | Score | None = said
        return answer


@register_evaluator(config_type=PythonConfig)
async def python(config: PythonConfig, builder: Builder) -> AsyncIterator[Evaluator]:
    """Find the function."""
    function = find_function(config.function, f"eval.evaluators.{builder.entry_name}.function")
    yield FunctionEvaluator(function, ScoreRange(config.low, config.high), config.arguments)


def find_function(dotted: str, key: str) -> Callable[..., Any]:
    """The function of that name.

    Raises:
        ConfigError: its module can't be imported, or holds no such function; names the nearest.
    """
    separator = ":" if ":" in dotted else "."
    module_name, _, name = dotted.rpartition(separator)
    try:
        with boundary(Stage.EVALUATOR):
            module = importlib.import_module(module_name)
    except StageError as error:
        hint = "it must be importable where nat-finetune runs: install its package, or name its folder in PYTHONPATH"
        raise ConfigError(
            Problem(f"the module {module_name} can't be imported: {error.error_type}: {error}", key, hint=hint)
        ) from error
    known = {key: value for key, value in vars(module).items() if callable(value)}
    if name not in known:
        what = f"{module_name}.{name} can't be called" if name in vars(module) else f"{module_name} has no function {name!r}"
        raise ConfigError(Problem(what, key, hint=nearest(name, list(known))))
    function: Callable[..., Any] = known[name]
    return function
