"""What happened in a rollout, fact by fact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field

from nat_finetune.types.examples import ExampleId, Message
from nat_finetune.types.invariants import require
from nat_finetune.types.policies import FinishReason, PolicyRef, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """One turn: what the model was asked and what it sampled."""

    kind: Literal["model_call"] = "model_call"
    rollout_id: str
    seq: int
    """Order in which the rollout's events began, from 0; a cancelled call leaves a gap."""
    path: tuple[str, ...]
    """Names of the functions that were running, outermost (`<workflow>`) first."""
    start: float
    """Unix time, seconds."""
    end: float
    llm: str
    """Name in the config's `llms`."""
    messages: tuple[Message, ...]
    message: Message
    """The assistant's reply."""
    finish_reason: FinishReason
    sampling: SamplingParams
    policy: PolicyRef | None = None
    """None for an endpoint that is no policy of this run."""
    prompt_ids: tuple[int, ...] | None = None
    """The token ids that the engine was given; None where an endpoint does not return them."""
    completion_ids: tuple[int, ...] | None = None
    """The token ids that were sampled, the end-of-turn token included where it was sampled."""
    logprobs: tuple[float, ...] | None = None
    """Log-probabilities of `completion_ids` at the sampling temperature, nats."""
    tools: tuple[Mapping[str, Any], ...] | None = None
    """Tool schemas that were offered."""

    def __post_init__(self) -> None:
        if self.logprobs is not None and self.completion_ids is not None:
            require(
                len(self.logprobs) == len(self.completion_ids),
                f"a logprob for every completion token: {len(self.logprobs)} logprobs, {len(self.completion_ids)} ids",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One tool that the agent used."""

    kind: Literal["tool_call"] = "tool_call"
    rollout_id: str
    seq: int
    path: tuple[str, ...]
    start: float
    end: float
    name: str
    arguments: Any
    result: Any = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionCall:
    """One call of a registered function, the workflow itself included."""

    kind: Literal["function_call"] = "function_call"
    rollout_id: str
    seq: int
    path: tuple[str, ...]
    start: float
    end: float
    name: str
    input: Any
    output: Any = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateScored:
    """One completion out of several that were proposed at the same turn, with its score.

    The fields hold what the workflow emitted, valid or not: `data.pairs` decides, and counts what it can't use.
    """

    kind: Literal["candidate_scored"] = "candidate_scored"
    rollout_id: str
    seq: int
    path: tuple[str, ...]
    start: float
    end: float
    step_name: str
    """What `ttc_step_name` is compared with."""
    turn_id: Any
    candidate_index: Any = None
    input: Any = None
    """The context: a text or a list of messages."""
    output: Any = None
    score: Any = None
    turn_index: int | None = None
    selected: bool | None = None
    """Whether the workflow went on with this candidate."""
    call_seq: int | None = None
    """`seq` of the model call that produced it: the source of its token ids."""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardGiven:
    """A reward that the workflow itself pays for one turn (a step reward)."""

    kind: Literal["reward_given"] = "reward_given"
    rollout_id: str
    seq: int
    path: tuple[str, ...]
    start: float
    end: float
    name: str
    value: float | None
    call_seq: int | None
    """`seq` of the model call that earned it; None when the rollout as a whole did."""


class Cause(StrEnum):
    """Who is to blame for a failure, which decides what it earns."""

    POLICY = "policy"
    """Unparsable, illegal, too long, out of turns: an outcome, earns `failure_reward` or what the workflow says."""
    INFRASTRUCTURE = "infrastructure"
    """A timeout, a dead service, a bug: the reward is unknown (None)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Where and why a rollout ended early, or an evaluator gave no score."""

    kind: Literal["failure"] = "failure"
    rollout_id: str
    seq: int
    path: tuple[str, ...]
    start: float
    end: float
    stage: str
    """One of `errors.Stage`."""
    cause: Cause
    error_type: str
    message: str


Event = Annotated[ModelCall | ToolCall | FunctionCall | CandidateScored | RewardGiven | Failure, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True)
class Rollout:
    """One execution of the workflow on one example."""

    rollout_id: str
    example_id: ExampleId
    generation: int
    """0-based index among the generations of this example in this step."""
    seed: int
    events: tuple[Event, ...]
    output: Any = None
    rewards: Mapping[str, float | None] = field(default_factory=dict)
    """Named rewards; None is unknown, never 0."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Reward name -> why, where the evaluator said so."""
    failure: Failure | None = None
    """Set when the workflow did not reach its end."""
    policy_version: int | None = None
    """The trained policy's version while this rollout ran."""
    attempts: int = 1

    @property
    def model_calls(self) -> tuple[ModelCall, ...]:
        """The turns of this rollout, all models and functions."""
        return tuple(event for event in self.events if isinstance(event, ModelCall))
