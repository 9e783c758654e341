"""What evaluators of an answer have in common: where it and the known one come from, and what earns the lowest score."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from nat_finetune.config.component import EvaluatorBaseConfig
from nat_finetune.config.template import part
from nat_finetune.errors import InfrastructureFailure, Stage
from nat_finetune.types import Example, Rollout, Score, ScoreRange

AnswerSource = Annotated[str, Field(pattern=r"^(output(\.\w+)*|last_message)$")]
TargetSource = Annotated[str, Field(pattern=r"^(target(\.\w+)*|metadata(\.\w+)+)$")]
UNIT = ScoreRange(0.0, 1.0)
"""What most evaluators score in."""


class AnswerEvaluatorConfig(EvaluatorBaseConfig):
    """Which part of a rollout is the answer."""

    answer_from: AnswerSource = "output"
    """`output`: what the workflow returned; `output.key`: a part of it; `last_message`: the text of its last model call."""


class TargetEvaluatorConfig(AnswerEvaluatorConfig):
    """Which part of an example is the known answer."""

    target_from: TargetSource = "target"
    """`target`, `target.key` or `metadata.column`. An example that has none there has an unknown score."""


@dataclass(frozen=True, slots=True)
class AnswerEvaluator:
    """Scores the answer of a rollout: by itself, or against the example's known one.

    A rollout that the policy made fail, or that has no answer, scores the range's low end.
    """

    answer_from: str
    score: Callable[[Any, Any], float | Score]
    """(answer, known answer) to a score; the second is None without `target_from`."""
    target_from: str | None = None
    """None: the answer is scored by itself."""
    score_range: ScoreRange = UNIT

    async def __call__(self, example: Example, rollout: Rollout) -> float | Score | None:
        """The score; None where the example has no known answer to compare with."""
        target = None if self.target_from is None else target_of(example, self.target_from)
        if target is None and self.target_from is not None:
            return None
        missing = no_answer(rollout, self.answer_from)
        if missing is not None:
            return Score(self.score_range.low, missing)
        return self.score(answer_of(rollout, self.answer_from), target)


def no_answer(rollout: Rollout, source: str) -> str | None:
    """Why a rollout has no answer to score; None where it has one."""
    if rollout.failure is not None:
        return f"the rollout failed: {rollout.failure.message}"
    return "there is no answer" if answer_of(rollout, source) is None else None


def answer_of(rollout: Rollout, source: str) -> Any:
    """The part of a rollout that `source` names, None where there is none.

    Raises:
        InfrastructureFailure: the output has no such part.
    """
    if source == "last_message":
        calls = rollout.model_calls
        return calls[-1].message.get("content") if calls else None
    return None if rollout.output is None else _part({"output": rollout.output}, source)


def target_of(example: Example, source: str) -> Any:
    """The known answer of an example, None where it has none.

    Raises:
        InfrastructureFailure: it has no such part.
    """
    if example.target is None and source.startswith("target"):
        return None
    return _part({"target": example.target, "metadata": example.metadata}, source)


def _part(values: dict[str, Any], path: str) -> Any:
    try:
        return part(values, path)
    except KeyError as error:
        raise InfrastructureFailure(error.args[0], stage=Stage.EVALUATOR, error_type="KeyError") from None
