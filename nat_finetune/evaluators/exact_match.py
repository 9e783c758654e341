"""`exact_match`: 1 where the workflow's answer is the example's known one, else 0."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from nat_finetune.answers import AnswerEvaluator, TargetEvaluatorConfig
from nat_finetune.interfaces import Builder, Evaluator
from nat_finetune.registry import register_evaluator


class ExactMatchConfig(TargetEvaluatorConfig, name="exact_match"):
    """1 where the answer equals the known one, as texts without surrounding white space; unknown where none is known."""

    ignore_case: bool = False
    """Whether upper and lower case count as the same."""


@register_evaluator(config_type=ExactMatchConfig)
async def exact_match(config: ExactMatchConfig, builder: Builder) -> AsyncIterator[Evaluator]:
    """Make the evaluator."""

    def text(value: object) -> str:
        shown = str(value).strip()
        return shown.casefold() if config.ignore_case else shown

    def score(answer: Any, target: Any) -> float:
        return float(text(answer) == text(target))

    yield AnswerEvaluator(config.answer_from, score, target_from=config.target_from)
