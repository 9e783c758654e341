r"""`numeric_match`: 1 where the number in the answer is the known one.

Numbers are read as people and models write them: `1,234.5`, `-3e-4`, `3/4`, `\frac{3}{4}`, `12.5%`, `$5`, `\boxed{7}`.
"""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import Field

from nat_finetune.answers import AnswerEvaluator, TargetEvaluatorConfig
from nat_finetune.errors import InfrastructureFailure, Stage
from nat_finetune.interfaces import Builder, Evaluator
from nat_finetune.registry import register_evaluator
from nat_finetune.types import Score

_SIMPLE = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?:\.\d+)?(?:[eE][+-]?\d{1,3})?"
_UNSIGNED = rf"(?=[.\d]){_SIMPLE}(?:\s*/\s*(?=[.\d]){_SIMPLE})?"
_NUMBER = re.compile(rf"(?<![\w.])[+\-\u2212]?\s?[$€£]?{_UNSIGNED}\s?%?(?![\d])")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_BOXED = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_IGNORED = str.maketrans({"$": "", "€": "", "£": "", ",": "", " ": "", "\u2212": "-"})
_LONGEST = 400
"""Characters. What is longer is no number that anybody asked for."""


class NumericMatchConfig(TargetEvaluatorConfig, name="numeric_match"):
    """1 where the answer's number is the known one, within a tolerance; 0 where the answer holds no number."""

    find: Literal["last", "first", "whole", "boxed"] = "last"
    r"""Which number of a text: the last one, the first one, the whole text as one number, or the last one in `\boxed{}`."""
    absolute_tolerance: Annotated[float, Field(ge=0)] = 1e-9
    relative_tolerance: Annotated[float, Field(ge=0)] = 0.0
    """Share of the known number; the larger tolerance counts."""
    percent: bool = True
    """`5%` is 0.05; false: it is 5."""


@register_evaluator(config_type=NumericMatchConfig)
async def numeric_match(config: NumericMatchConfig, builder: Builder) -> AsyncIterator[Evaluator]:
    """Make the evaluator."""

    def score(answer: Any, target: Any) -> Score:
        wanted = number(target, "whole", percent=config.percent)
        if wanted is None:
            raise InfrastructureFailure(
                f"the known answer is no number: {target!r}", stage=Stage.EVALUATOR, error_type="TargetNotANumber"
            )
        found = number(answer, config.find, percent=config.percent)
        if found is None:
            return Score(0.0, f"no number found ({config.find}) in {str(answer)[-200:]!r}")
        near = abs(found - wanted) <= max(
            Fraction(config.absolute_tolerance), Fraction(config.relative_tolerance) * abs(wanted)
        )
        return Score(float(near), None if near else f"found {_short(found)}, expected {_short(wanted)}")

    yield AnswerEvaluator(config.answer_from, score, target_from=config.target_from)


def number(value: Any, find: str, *, percent: bool = True) -> Fraction | None:
    """The number that a value is or that its text holds, exactly; None where there is none.

    >>> number("so it is 1,234.5.", "last")
    Fraction(2469, 2)
    """
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return Fraction(value) if math.isfinite(value) else None
    text = str(value)
    if find == "boxed":
        boxes = _BOXED.findall(text)
        return number(boxes[-1], "whole", percent=percent) if boxes else None
    text = _FRACTION.sub(r"\1/\2", _BOXED.sub(r" \1 ", text))
    if find == "whole":
        match = _NUMBER.fullmatch(text.strip().removeprefix("$").removesuffix("$").removesuffix(".").strip())
        return _exact(match[0], percent) if match else None
    values = [known for match in _NUMBER.finditer(text) if (known := _exact(match[0], percent)) is not None]
    return (values[-1] if find == "last" else values[0]) if values else None


def _exact(written: str, percent: bool) -> Fraction | None:
    text = written.strip()
    if len(text) > _LONGEST:
        return None
    hundredth = text.endswith("%") and percent
    top, _, bottom = text.removesuffix("%").translate(_IGNORED).partition("/")
    if bottom and Fraction(bottom) == 0:
        return None
    value = Fraction(top) / Fraction(bottom or 1)
    return value / 100 if hundredth else value


def _short(value: Fraction) -> str:
    return str(value) if len(str(value)) <= 40 else f"{str(value)[:40]}…"
