"""What the steps of a run are made with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from nat_finetune.data.curriculum import CurriculumRules
from nat_finetune.evaluate import PolicyEvaluation
from nat_finetune.interfaces import TrainerAdapter, TrajectoryBuilder
from nat_finetune.records import RecordSource
from nat_finetune.report.diagnosis import Evidence
from nat_finetune.rollout_service import RolloutService
from nat_finetune.runstore import RunStore
from nat_finetune.steps.schedule import Budget
from nat_finetune.types import Item, Rollout, Target


@dataclass(frozen=True, slots=True)
class RolloutSource:
    """Items are built from rollouts of the workflow."""

    service: RolloutService
    builder: TrajectoryBuilder


@dataclass(frozen=True, slots=True)
class Parts:
    """What the steps of a run are made with."""

    source: RolloutSource | RecordSource
    adapter: TrainerAdapter
    validation: PolicyEvaluation | None
    target: Target
    best: Mapping[str, float] = field(default_factory=dict)
    """The best score of each reward, where its evaluator declares it."""
    check_records: Callable[[Sequence[Item]], list[str]] = lambda items: []
    """Refuses items of records that leak into what is held out; returns what to warn of."""
    budget: Budget | None = None
    """None: training takes as long as it takes."""
    cancel_wanted: Callable[[str], bool] = lambda question: False
    """As `steps.job.Jobs.cancel_wanted`."""


def evidence(rollouts: Sequence[Rollout], parts: Parts, rules: CurriculumRules | None, store: RunStore) -> Evidence:
    """What the rollouts of a step say of why there is nothing to train on."""
    generations = 0 if isinstance(parts.source, RecordSource) else parts.source.builder.generations
    spread = rules.min_reward_diff if rules is not None else None
    checked = (store.read_json("calibration.json") or {}).get("sentence")
    return Evidence(rollouts, parts.target, generations, parts.best, checked, spread)
