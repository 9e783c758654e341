"""`regex`: 1 where a pattern is found in the answer, or where what it captures is the known answer."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Literal, Self

import regex as engine
from pydantic import field_validator, model_validator

from nat_finetune.answers import AnswerEvaluator, TargetEvaluatorConfig
from nat_finetune.interfaces import Builder, Evaluator
from nat_finetune.registry import register_evaluator
from nat_finetune.types import Score

LONGEST_SEARCH = 1.0
"""Seconds. A pattern that a text makes search for longer gives an unknown score instead of a run that stands still."""
Flag = Literal["ignore_case", "multiline", "dotall"]
_FLAGS = {"ignore_case": engine.IGNORECASE, "multiline": engine.MULTILINE, "dotall": engine.DOTALL}


class RegexConfig(TargetEvaluatorConfig, name="regex"):
    """1 where the pattern is found in the answer; with `compare`, where what it captures is the known answer."""

    pattern: str
    """In Python's syntax."""
    whole: bool = False
    """Whether the pattern must describe the whole answer, surrounding white space apart."""
    flags: tuple[Flag, ...] = ()
    compare: bool = False
    """Compare the last match's group `answer` (else its first group, else all of it) with the known answer, as texts."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            engine.compile(pattern)
        except engine.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
        return pattern

    @model_validator(mode="after")
    def _compares_or_not(self) -> Self:
        if "target_from" in self.model_fields_set and not self.compare:
            raise ValueError("target_from is only used with `compare: true`")
        return self


@register_evaluator(config_type=RegexConfig)
async def regex(config: RegexConfig, builder: Builder) -> AsyncIterator[Evaluator]:
    """Make the evaluator."""
    flags = 0
    for flag in config.flags:
        flags |= _FLAGS[flag]
    pattern = engine.compile(config.pattern, flags)

    def last_match(text: str) -> Any:
        if config.whole:
            return pattern.fullmatch(text.strip(), timeout=LONGEST_SEARCH)
        if not config.compare:
            return pattern.search(text, timeout=LONGEST_SEARCH)
        return next(iter(deque(pattern.finditer(text, timeout=LONGEST_SEARCH), maxlen=1)), None)

    def score(answer: Any, target: Any) -> Score:
        match = last_match(str(answer))
        if match is None:
            return Score(0.0, "the pattern is not in the answer")
        if not config.compare:
            return Score(1.0)
        captured = str(_captured(match)).strip()
        same = captured == str(target).strip()
        return Score(float(same), None if same else f"found {captured!r}, expected {str(target).strip()!r}")

    yield AnswerEvaluator(config.answer_from, score, target_from=config.target_from if config.compare else None)


def _captured(match: Any) -> str:
    """Group `answer`, else the first group, else all that was matched; "" for a group that took no part."""
    named = match.groupdict()
    if "answer" in named:
        return named["answer"] or ""
    return (match[1] if match.re.groups else match[0]) or ""
