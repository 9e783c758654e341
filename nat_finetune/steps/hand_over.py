"""The one step of a run whose backend runs the rollouts itself."""

from __future__ import annotations

from collections.abc import Sequence

from nat_finetune.config.schema import FinetuningConfig
from nat_finetune.interfaces import Step
from nat_finetune.records import RecordSource
from nat_finetune.steps.parts import Parts
from nat_finetune.types import Collection, Example, HandOver


def handed_over(config: FinetuningConfig, examples: Sequence[Example], parts: Parts, run_id: str) -> tuple[Step, Collection]:
    """The step, and what the backend is given: the whole training in place of items."""
    step = Step(0, 0, tuple(examples), last_of_epoch=True, validated=config.validation is not None)
    generations = 1 if isinstance(parts.source, RecordSource) else parts.source.builder.generations
    per_step = min(config.examples_per_step or len(examples), len(examples))
    work = HandOver(step.examples, config.num_epochs, per_step, generations)
    return step, Collection((), run_id, step.index, parts.target.llm, handed_over=work)
