"""What a backend is given, and what it says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from nat_finetune.types.dropped import Dropped
from nat_finetune.types.examples import Example
from nat_finetune.types.invariants import require
from nat_finetune.types.items import Item
from nat_finetune.types.policies import PolicyRef


@dataclass(frozen=True, slots=True)
class HandOver:
    """What a backend gets that runs the rollouts itself: the whole training, in place of items."""

    examples: tuple[Example, ...]
    epochs: int
    """Passes over the examples."""
    examples_per_step: int
    """Examples whose rollouts make one update."""
    generations: int
    """Rollouts of each example."""

    @property
    def steps(self) -> int:
        """Updates of the whole training."""
        return self.epochs * -(-len(self.examples) // self.examples_per_step)


@dataclass(frozen=True, slots=True)
class Collection:
    """What one update trains on: items of one kind, and what it took to get them."""

    items: tuple[Item, ...]
    run_id: str
    step: int
    target_llm: str
    dropped: tuple[Dropped, ...] = ()
    warm_up: bool = False
    """Whether only the chosen completions of the pairs are imitated: before preferences are trained."""
    handed_over: HandOver | None = None
    """Set where the backend runs the rollouts itself: then there are no items."""

    def __post_init__(self) -> None:
        kinds = {type(item).__name__ for item in self.items}
        require(len(kinds) <= 1, f"a collection holds items of one kind, found {sorted(kinds)}")
        require(not (self.items and self.handed_over), "a backend that runs the rollouts itself is given no items")


class JobState(StrEnum):
    """Where a training job stands."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"
    """The backend answered with a status that nat-finetune does not know; shown as it came."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A prepared update: persisted before anything is sent, so that a crash can't submit it twice."""

    run_id: str
    step: int
    key: str
    """Idempotency key: the same collection in the same step has the same key."""
    adapter: str
    items: int
    payload: Mapping[str, Any] = field(default_factory=dict)
    dropped: tuple[Dropped, ...] = ()
    """What the backend can't train on, such as items longer than its limit."""


@dataclass(frozen=True, slots=True)
class TrainingJobRef:
    """A submitted update."""

    job_id: str
    key: str
    adapter: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrainingJobStatus:
    """What the backend says of a job."""

    state: JobState
    progress: float | None = None
    """Share done, 0 to 1; None if unknown."""
    message: str = ""
    """The backend's reason, or what it is at."""
    backend_state: str = ""
    """The backend's own word for the state."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The last losses that the backend tells."""
    detail: Mapping[str, Any] = field(default_factory=dict)
    """What else it says; JSON-able, no secrets."""


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What one update did."""

    policy: PolicyRef
    tokens_trained: int | None
    """Tokens whose gradient was not zero by construction; None, as below: the backend does not say."""
    tokens_masked: int | None
    """Trainable tokens whose advantage was exactly 0."""
    optimiser_steps: int | None
    metrics: Mapping[str, float]
    """Means over the update: `loss`, `grad_norm`, `clip_fraction`, `kl`, ... (docs/algorithms.md)."""
    seconds: float
    curve: tuple[Mapping[str, float], ...] = ()
    """The same metrics for each optimiser step."""
    reward_shares: Mapping[str, float] = field(default_factory=dict)
    """By reward: its share of what moved the advantages, summing to 1; empty where there is one reward."""
    backend: Mapping[str, Any] = field(default_factory=dict)
    """What another process or service did, for the report: `service`, `job_id`, `hosts`, `output_model`, `status`, `losses`,
    `best_epoch`, `deployment`, `checkpoint`, `commands` (to go on), `logs` (last lines), `not_served` (why the trained model
    can't be sampled from yet, and what to do), ... JSON-able, no secrets."""
