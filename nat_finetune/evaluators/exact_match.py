"""`exact_match`: 1 where the workflow's output is the example's known answer, else 0."""

from __future__ import annotations

from collections.abc import AsyncIterator

from nat_finetune.config.component import EvaluatorBaseConfig
from nat_finetune.interfaces import Builder, Evaluator
from nat_finetune.registry import register_evaluator
from nat_finetune.types import Example, Rollout


class ExactMatchConfig(EvaluatorBaseConfig, name="exact_match"):
    """1 where the output equals the answer, as texts without surrounding white space; unknown where there is no answer."""

    ignore_case: bool = False
    """Whether upper and lower case count as the same."""


@register_evaluator(config_type=ExactMatchConfig)
async def exact_match(config: ExactMatchConfig, builder: Builder) -> AsyncIterator[Evaluator]:
    """Make the evaluator."""

    def text(value: object) -> str:
        shown = str(value).strip()
        return shown.casefold() if config.ignore_case else shown

    async def evaluate(example: Example, rollout: Rollout) -> float | None:
        if example.target is None:
            return None
        return 0.0 if rollout.output is None else float(text(rollout.output) == text(example.target))

    yield evaluate
