"""What this plugin registers: a dataset and the evaluator that scores its answers with the library's own rules."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Annotated, Any, Literal

from nat_finetune_plugins.reasoning_gym.families import open_family
from pydantic import Field

from nat_finetune.answers import AnswerEvaluatorConfig, answer_of, no_answer
from nat_finetune.config.component import EvalDatasetBaseConfig, Text
from nat_finetune.errors import DataError, InfrastructureFailure, Stage
from nat_finetune.interfaces import Builder, DatasetLoader, Evaluator
from nat_finetune.registry import register_dataset_loader, register_evaluator
from nat_finetune.tracing.recorder import plain
from nat_finetune.types import Example, Rollout, Score, ScoreRange

TRIES = 50
"""Tasks that are drawn for each one wanted, before the family counts as too small."""
_PARTS = {"train": range(0, 6), "validation": range(6, 8), "test": range(8, 10)}


class ReasoningGymDatasetConfig(EvalDatasetBaseConfig, name="reasoning_gym"):
    """Tasks of one family of reasoning-gym, no question twice. Needs the extra `reasoning-gym`."""

    family: Text
    """The library's name of it, such as `chain_sum`."""
    size: Annotated[int, Field(ge=1)]
    seed: Annotated[int, Field(ge=0)] = 0
    """The library's: task i of seed s is task i+1 of seed s-1, so two seeds are no two sets. Use `part` for that."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """The family's own settings."""
    part: Literal["all", "train", "validation", "test"] = "all"
    """Only questions of this part (60, 20 and 20 %, by a hash of the question): no two parts share one, whatever the seeds."""


class ReasoningGymDataset:
    """Draws the tasks."""

    def __init__(self, config: ReasoningGymDatasetConfig, tasks: Any, drawn: int) -> None:
        self._config = config
        self._tasks = tasks
        self._drawn = drawn

    def load(self) -> Iterator[Example]:
        """`size` tasks.

        Raises:
            DataError: the family has fewer different questions.
        """
        config, seen = self._config, set[str]()
        for index in range(self._drawn):
            task = self._tasks[index]
            question = task["question"]
            if question in seen or not _in_part(question, config.part):
                continue
            seen.add(question)
            origin = {
                "family": config.family, "seed": config.seed, "size": self._drawn, "index": index, "settings": config.settings
            }  # fmt: skip
            metadata = {**plain(task["metadata"]), "task": origin}
            yield Example(f"{config.family}-{config.seed}-{index}", question, task["answer"], metadata=metadata)
            if len(seen) == config.size:
                return
        raise DataError(
            f"reasoning-gym's {config.family} gave {len(seen)} different questions of part {config.part} in {self._drawn} "
            f"draws, size asks for {config.size}: ask for fewer, or widen the family's settings"
        )


@register_dataset_loader(config_type=ReasoningGymDatasetConfig)
async def reasoning_gym_dataset(config: ReasoningGymDatasetConfig, builder: Builder) -> AsyncIterator[DatasetLoader]:
    """Open the family."""
    drawn = config.size * TRIES
    yield ReasoningGymDataset(
        config, open_family(config.family, config.settings, seed=config.seed, size=drawn, key=builder.entry_name), drawn
    )


class ReasoningGymConfig(AnswerEvaluatorConfig, name="reasoning_gym"):
    """What the library says of the answer to a task of the dataset `reasoning_gym`: 1 is right; some families pay parts."""


class ReasoningGymEvaluator:
    """Makes each task again and has the library score the answer to it."""

    score_range = ScoreRange(0.0, 1.0)

    def __init__(self, answer_from: str, key: str) -> None:
        self._answer_from = answer_from
        self._key = key
        self._families: dict[str, Any] = {}

    async def __call__(self, example: Example, rollout: Rollout) -> Score:
        """The library's score; 0 where there is no answer."""
        origin = example.metadata.get("task")
        if not isinstance(origin, Mapping) or "family" not in origin:
            raise _not_a_task(f"example {example.id!r} is no task of the dataset `_type: reasoning_gym`")
        missing = no_answer(rollout, self._answer_from)
        if missing is not None:
            return Score(0.0, missing)
        tasks = self._family(origin)
        task = tasks[origin["index"]]
        if task["question"] != example.input:
            raise _not_a_task(f"example {example.id!r} is another task in the reasoning-gym that is installed")
        return Score(tasks.score_answer(str(answer_of(rollout, self._answer_from)).strip(), task))

    def _family(self, origin: Mapping[str, Any]) -> Any:
        name = repr([origin["family"], origin["seed"], origin["size"], origin["settings"]])
        if name not in self._families:
            self._families[name] = open_family(
                origin["family"], origin["settings"], seed=origin["seed"], size=origin["size"], key=self._key
            )
        return self._families[name]


@register_evaluator(config_type=ReasoningGymConfig)
async def reasoning_gym(config: ReasoningGymConfig, builder: Builder) -> AsyncIterator[Evaluator]:
    """Make the evaluator."""
    yield ReasoningGymEvaluator(config.answer_from, f"eval.evaluators.{builder.entry_name}")


def _in_part(question: str, part: str) -> bool:
    return part == "all" or hashlib.sha256(question.encode()).digest()[0] % 10 in _PARTS[part]


def _not_a_task(message: str) -> InfrastructureFailure:
    return InfrastructureFailure(message, stage=Stage.EVALUATOR, error_type="NotATask")
