"""Sections of `finetuning` about the reward: whether it is checked, and which groups are worth training on."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from nat_finetune.config.component import FilePath, Section


class CurriculumLearningConfig(Section):
    """`finetuning.curriculum_learning`: easy examples first, NAT's fields."""

    enabled: bool = False
    initial_percentile: float = Field(0.3, gt=0, le=1)
    """Share of the examples, the easiest ones, that the first epochs train on."""
    increment_percentile: float = Field(0.2, gt=0, le=1)
    """How much that share grows at a time."""
    expansion_interval: int = Field(5, ge=1)
    """Epochs from one growth to the next."""
    min_reward_diff: float = Field(0.1, ge=0)
    """Groups whose rewards differ by less are left out; a filter, it makes no signal."""
    sort_ascending: bool = False
    """True: examples of low mean reward first."""
    random_subsample: float | None = Field(None, gt=0, le=1)
    """Share of each selected group's rollouts that is trained, drawn with the run's seed, at least two."""


class DynamicSamplingConfig(Section):
    """`finetuning.dynamic_sampling`: other examples take the places of those whose groups are flat."""

    max_extra_examples: int = Field(ge=1)
    """Further examples that a step may run."""


class CalibrationConfig(Section):
    """`finetuning.calibration`: is the reward checked before the first step, and against what."""

    enabled: bool = True
    """Score known good and bad answers before the first step."""
    on_problem: Literal["stop", "warn"] = "stop"
    """What a reward that fails comes to."""
    examples: int = Field(16, ge=1)
    """Examples whose known answers are scored."""
    bad_answers: str | None = None
    """Column with an answer, or a list of answers, that are known to be bad."""
    verdicts: FilePath | None = None
    """JSONL of reviewers' verdicts that the reward must agree with."""
    run: FilePath | None = None
    """Run folder that holds the rollouts which verdicts name by `rollout_id`."""
    min_agreement: float = Field(0.7, ge=0.5, le=1)
    """Least share of pairs of rollouts that the reward must order as reviewers do."""

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> Self:
        ignored = {"run", "min_agreement"} & self.model_fields_set if self.verdicts is None else set()
        ignored |= {"examples", "bad_answers"} & self.model_fields_set if not self.enabled else set()
        if ignored:
            why = "without verdicts" if self.verdicts is None and ignored & {"run", "min_agreement"} else "with enabled: false"
            raise PydanticCustomError(
                "ignored", "{keys} would be ignored {why}", {"keys": ", ".join(sorted(ignored)), "why": why}
            )
        return self
