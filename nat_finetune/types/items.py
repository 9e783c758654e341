"""What can be trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nat_finetune.types.events import ModelCall
from nat_finetune.types.examples import ExampleId, Message
from nat_finetune.types.invariants import require
from nat_finetune.types.policies import FinishReason


@dataclass(frozen=True, slots=True)
class Turn:
    """The sampled tokens of one model call inside a segment."""

    index: int
    """0-based among the trained turns of the rollout."""
    start: int
    """First sampled token's position in the segment."""
    end: int
    """One past the last."""
    call_seq: int
    """`seq` of the model call."""
    finish_reason: FinishReason
    temperature: float
    """The sampling temperature: the trainer's logprobs are taken at the same one."""
    credit: float | None = None
    """Return of this turn under per-turn or shaped credit; None: the rollout's outcome pays it."""
    state: int | None = None
    """What the turn is compared with under such credit: turns of the group in the same state; None: those of the same index."""

    @property
    def cell(self) -> tuple[str, int]:
        """Turns of a group with equal cells are compared."""
        return ("index", self.index) if self.state is None else ("state", self.state)


@dataclass(frozen=True, slots=True)
class Segment:
    """A token sequence as the policy saw it: prompts and sampled tokens of turns that extend one another exactly."""

    token_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    """1 exactly where the policy sampled the token and it is trained."""
    logprobs: tuple[float, ...]
    """Sampler's logprobs, nats, at the sampling temperature; 0.0 where `loss_mask` is 0."""
    turns: tuple[Turn, ...]

    def __post_init__(self) -> None:
        lengths = {len(self.token_ids), len(self.loss_mask), len(self.logprobs)}
        require(len(lengths) == 1, f"ids, mask and logprobs of a segment must have one length, found {lengths}")
        trained = sum(turn.end - turn.start for turn in self.turns)
        require(
            trained == sum(self.loss_mask),
            f"trainable tokens are the sampled ones: {sum(self.loss_mask)} in the mask, {trained} in the turns",
        )


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The trainable content of one rollout."""

    rollout_id: str
    example_id: ExampleId
    segments: tuple[Segment, ...]
    rewards: Mapping[str, float | None]
    """The trained rewards, conditions applied; None is unknown."""
    policy_version: int | None = None
    trained: bool = True
    """False: it is compared with the others of its group, and its own tokens are masked (a truncated rollout)."""
    calls: tuple[ModelCall, ...] = ()
    """The trained calls, where the builder keeps them for a backend that reads messages beside tokens."""

    @property
    def trainable_tokens(self) -> int:
        """Number of tokens that carry a gradient."""
        return sum(sum(segment.loss_mask) for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Group:
    """Trajectories of the same example, which are compared with one another."""

    example_id: ExampleId
    trajectories: tuple[Trajectory, ...]

    def __post_init__(self) -> None:
        require(len(self.trajectories) >= 1, "a group needs at least one trajectory")
        others = {
            repr(t.example_id)
            for t in self.trajectories
            if (type(t.example_id), t.example_id) != (type(self.example_id), self.example_id)
        }
        require(not others, f"a group holds one example ({self.example_id!r}), found also {sorted(others)}")
        names = {frozenset(t.rewards) for t in self.trajectories}
        require(len(names) == 1, f"trajectories of a group must have the same reward names, found {names}")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One of several completions proposed at the same turn, valid and scored."""

    turn_id: str | int
    index: int
    context: tuple[Message, ...]
    """Normal form: a text is one user message."""
    context_text: str | None
    """The text, where the context came as one."""
    completion: str
    score: float
    prompt_ids: tuple[int, ...] | None = None
    completion_ids: tuple[int, ...] | None = None
    rollout_id: str | None = None
    call_seq: int | None = None


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a preference pair or demonstration comes from."""

    example_id: ExampleId
    rollout_id: str | None = None
    turn_id: str | int | None = None
    chosen_index: int | None = None
    rejected_index: int | None = None
    candidates: int | None = None
    """Valid candidates of the turn."""
    chosen_call: int | None = None
    """`seq` of the model call that produced the chosen completion."""
    rejected_call: int | None = None
    record: str | None = None
    """Reviewer record: file and line, `labels.jsonl:12`."""
    task_key: str | None = None
    """The task key of the record, where it has one."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Every other column of the record, such as who judged."""
    further_records: tuple[str, ...] = ()
    """Further reviewer records that say the same; they were merged into this one, and their weight was added."""


@dataclass(frozen=True, slots=True)
class PreferencePair:
    """Chosen and rejected completion of one context."""

    context: tuple[Message, ...]
    chosen: str
    rejected: str
    provenance: Provenance
    context_text: str | None = None
    chosen_score: float | None = None
    rejected_score: float | None = None
    margin: float | None = None
    """score(chosen) - score(rejected) > 0; None where a person only ranked."""
    reward: float | None = None
    weight: float = 1.0
    set_id: str | None = None
    """The candidate set that it was formed from: pairs of one set are not independent."""
    prompt_ids: tuple[int, ...] | None = None
    """The sampled call's ids, where both sides come from calls with the same prompt ids."""
    chosen_ids: tuple[int, ...] | None = None
    rejected_ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        require(self.chosen != self.rejected, "chosen and rejected must differ")
        require(self.margin is None or self.margin > 0, f"margin must be None or > 0, found {self.margin}")


@dataclass(frozen=True, slots=True)
class PairScore:
    """What a policy makes of a preference pair: above 0 where it is with the judge."""

    margin: float
    """Log-probability of the chosen completion, its end of turn included, less that of the rejected one (nats)."""
    reward_margin: float | None
    """The same of the implicit rewards: of log-ratios to the reference, means over tokens where the loss is of means (nats,
    not times beta); None without a reference."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A completion to imitate."""

    context: tuple[Message, ...]
    completion: str
    provenance: Provenance
    weight: float = 1.0
    prompt_ids: tuple[int, ...] | None = None
    """The sampled call's ids, where the completion is a call's whole reply."""
    completion_ids: tuple[int, ...] | None = None


Item = Group | PreferencePair | Demonstration
