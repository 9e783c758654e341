"""Evaluators of an answer: its form, its content, its length, and how likely the policy makes the one best answer."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Sequence

from nat_finetune_workflows.tool_calling.answers import canonical_text, is_well_formed, read_call
from nat_finetune_workflows.tool_calling.tools import Call, same_value
from nat_finetune_workflows.tool_calling.workflow import CallFunction
from pydantic import Field, model_validator

from nat_finetune.config.component import EvaluatorBaseConfig, FunctionRef
from nat_finetune.errors import ConfigError, DataError
from nat_finetune.interfaces import Builder, Evaluator
from nat_finetune.registry import register_evaluator
from nat_finetune.types import Cause, Example, Rollout, ScoreRange

_NAME, _ARGUMENTS, _VALUES = 2, 1, 3
"""Points for the tool, for the names of its arguments, and for their values."""


class ToolFormatConfig(EvaluatorBaseConfig, name="tool_format"):
    """1 where the answer keeps the format to the letter, else 0, whatever it calls."""


class ToolCorrectnessConfig(EvaluatorBaseConfig, name="tool_correctness"):
    """How much of the wanted call the answer makes, whatever its form: the tool, the names and the values of its arguments."""

    low: float = Field(-3.0, allow_inf_nan=False)
    """Of an answer that calls nothing, or nothing right."""
    high: float = Field(3.0, allow_inf_nan=False)
    """Of the wanted call."""

    @model_validator(mode="after")
    def _ordered(self) -> ToolCorrectnessConfig:
        if self.low >= self.high:
            raise ValueError(f"low must be below high: {self.low:g} and {self.high:g}")
        return self


class ToolLengthConfig(EvaluatorBaseConfig, name="tool_length"):
    """1 where the answer is short enough, else 0, whatever it says: give it a condition, or saying nothing is best."""

    at_most: int = Field(96, ge=0)
    """Characters. The longest call in the format has 96, without a thought."""


class ToolExactCallConfig(EvaluatorBaseConfig, name="tool_exact_call"):
    """1 where the answer is the wanted call in the format, arguments in the tool's order, without a thought."""

    caller: FunctionRef
    """The `_type: tool_call` whose answers are scored."""
    exact: bool = True
    """Evaluate by the probability of that answer; needs a local model."""


def correctness(call: Call | None, wanted: Call) -> float:
    """From 0 (nothing right) to 1 (the wanted call).

    Two points of six for the tool; one for the names of the arguments, as far as those given and those wanted overlap (Dice);
    three for the share of the wanted arguments that have the wanted value. Each part counts whatever the others are.

    >>> correctness(Call("set_light", {"room": "hall"}), Call("set_light", {"room": "hall", "colour": "red"}))
    0.6944444444444444
    """
    if call is None:
        return 0.0
    given, needed = set(call.arguments), set(wanted.arguments)
    overlap = 2 * len(given & needed) / (len(given) + len(needed)) if given or needed else 1.0
    right = sum(same_value(call.arguments[name], wanted.arguments[name]) for name in given & needed)
    share = right / len(needed) if needed else 1.0
    return (_NAME * (call.name == wanted.name) + _ARGUMENTS * overlap + _VALUES * share) / (_NAME + _ARGUMENTS + _VALUES)


def answer_text(rollout: Rollout) -> str | None:
    """What was answered: nothing where the policy failed (its prompt left no room); None where it isn't known."""
    if rollout.failure is not None:
        return "" if rollout.failure.cause is Cause.POLICY else None
    return str(rollout.output["text"])


def wanted_call(example: Example) -> Call:
    """The call that an example asks for.

    Raises:
        DataError: its answer is none.
    """
    try:
        return Call.from_json(str(example.target))
    except ValueError as error:
        raise DataError(f"example {example.id!r}: its answer is no call: {error}") from None


class AnswerEvaluator:
    """Grades the text of an answer; unknown where the infrastructure left none."""

    def __init__(self, grade: Callable[[Example, str], float], score_range: ScoreRange) -> None:
        self._grade = grade
        self.score_range = score_range

    async def __call__(self, example: Example, rollout: Rollout) -> float | None:
        """The grade."""
        text = answer_text(rollout)
        return None if text is None else self._grade(example, text)


@register_evaluator(config_type=ToolFormatConfig)
async def tool_format(config: ToolFormatConfig, builder: Builder) -> AsyncIterator[Evaluator]:
    """Make the evaluator."""
    yield AnswerEvaluator(lambda _, text: float(is_well_formed(text)), ScoreRange(0.0, 1.0))


@register_evaluator(config_type=ToolCorrectnessConfig)
async def tool_correctness(config: ToolCorrectnessConfig, builder: Builder) -> AsyncIterator[Evaluator]:
    """Make the evaluator."""

    def grade(example: Example, text: str) -> float:
        return config.low + (config.high - config.low) * correctness(read_call(text), wanted_call(example))

    yield AnswerEvaluator(grade, ScoreRange(config.low, config.high))


@register_evaluator(config_type=ToolLengthConfig)
async def tool_length(config: ToolLengthConfig, builder: Builder) -> AsyncIterator[Evaluator]:
    """Make the evaluator."""
    yield AnswerEvaluator(lambda _, text: float(len(text) <= config.at_most), ScoreRange(0.0, 1.0))


def is_best(example: Example, text: str) -> float:
    """1 where the answer is the one best answer, white space apart."""
    return float("".join(text.split()) == "".join(canonical_text(wanted_call(example)).split()))


class ExactCallEvaluator(AnswerEvaluator):
    """Also says exactly how probable the one best answer is."""

    def __init__(self, caller: CallFunction) -> None:
        super().__init__(is_best, ScoreRange(0.0, 1.0))
        self._caller = caller

    async def evaluate_policy(self, examples: Sequence[Example]) -> list[float | None]:
        """The probability of the one best answer to each example."""
        answers = [canonical_text(wanted_call(example)) for example in examples]
        return [math.exp(nats) for nats in await self._caller.logprobs([str(e.input) for e in examples], answers)]


@register_evaluator(config_type=ToolExactCallConfig)
async def tool_exact_call(config: ToolExactCallConfig, builder: Builder) -> AsyncIterator[Evaluator]:
    """Make the evaluator.

    Raises:
        ConfigError: the caller can't say how likely it makes an answer.
    """
    if not config.exact:
        yield AnswerEvaluator(is_best, ScoreRange(0.0, 1.0))
        return
    caller = (await builder.get_function(config.caller)).inner  # type: ignore[attr-defined]
    if not isinstance(caller, CallFunction):
        raise ConfigError(
            f"functions.{config.caller} can't say how likely it makes an answer, which exact evaluation needs; "
            "name a `_type: tool_call`, or set `exact: false`"
        )
    yield ExactCallEvaluator(caller)
