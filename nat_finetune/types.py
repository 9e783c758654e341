"""The words of nat-finetune as data: every core type, frozen, its invariants checked when it is made.

Everything here is a plain dataclass of JSON-able fields, so that `runstore` can write any of it as one line and load an
equal value back. No behaviour lives here beyond the invariants: recording is in `tracing/`, building in `data/`.
Text about a type's meaning is under its fields; the vocabulary is that of docs/names.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field

Message = Mapping[str, Any]
"""One chat message in OpenAI's form: `role`, `content`, and where present `tool_calls`, `tool_call_id`, `name`."""

ExampleId = str | int
"""Ids keep their type: 1 is not "1", "007" is not 7."""


@dataclass(frozen=True, slots=True)
class Example:
    """One row of a dataset: the task that is given to the agent."""

    id: ExampleId
    """Unique in its dataset, with its type."""
    input: Any
    """What the workflow gets."""
    target: Any = None
    """The known answer, None where there is none."""
    task_key: str | None = None
    """What makes two examples the same task; intervals and splits treat equal keys as one cluster. None: the id."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Every other column of the row."""


@dataclass(frozen=True, slots=True)
class Record:
    """One row of a dataset as it was written: what a builder that trains on records reads."""

    place: str
    """File and line, `labels.jsonl:12`."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """The columns, without those of id and task key."""
    id: ExampleId | None = None
    """None where the row has none."""
    task_key: str | None = None
    problem: str | None = None
    """Why the row can't be read; None: it could."""


class FinishReason(StrEnum):
    """Why a model call ended."""

    STOP = "stop"
    """The policy produced an end-of-turn token or a stop string."""
    LENGTH = "length"
    """`max_tokens` or the context ran out: the completion is truncated."""
    TOOL_CALLS = "tool_calls"
    """The policy ended its turn to have tools called."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tokens of one model call were drawn."""

    max_tokens: int
    """Most completion tokens, end-of-turn token included."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float | None = None
    top_k: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    stop: tuple[str, ...] = ()
    """Texts that end the completion; the tokens that form them stay in it."""
    seed: int | None = None
    """Seed of this call alone."""

    def __post_init__(self) -> None:
        _require(self.max_tokens >= 1, f"max_tokens must be at least 1, found {self.max_tokens}")
        _require(math.isfinite(self.temperature) and self.temperature >= 0, f"temperature must be >= 0: {self.temperature}")

    @property
    def truncating(self) -> tuple[str, ...]:
        """The settings in force, besides temperature, that make the sampled distribution another than the model's."""
        active = {
            "top_p": self.top_p not in (None, 1.0),
            "top_k": self.top_k not in (None, 0),
            "frequency_penalty": self.frequency_penalty not in (None, 0.0),
            "presence_penalty": self.presence_penalty not in (None, 0.0),
            "repetition_penalty": self.repetition_penalty not in (None, 1.0),
        }
        return tuple(name for name, on in active.items() if on)


@dataclass(frozen=True, slots=True)
class PolicyRef:
    """Which weights: every model call and every update names one, and so does a reference policy."""

    llm: str
    """Name in the config's `llms`."""
    version: int
    """0 before the first update; goes up by one with every update."""
    location: str = "memory"
    """"memory", a folder, an adapter's folder, or the name under which an endpoint serves it."""
    digest: str | None = None
    """Hash of the trained weights, None where they are out of reach."""


@dataclass(frozen=True, slots=True)
class RewardCondition:
    """An easy reward is paid only where a hard one is earned."""

    requires: str
    """The evaluator whose score, as it gave it, decides."""
    at_least: float
    otherwise: float = 0.0
    """What is paid where the score is lower. An unknown score makes the reward unknown."""


@dataclass(frozen=True, slots=True)
class RewardTerm:
    """One of the rewards that are trained."""

    name: str
    """The evaluator whose score it is."""
    weight: float = 1.0
    condition: RewardCondition | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """What is trained: calls of `llm` made inside one of `functions`, for these rewards."""

    functions: tuple[str, ...]
    llm: str
    rewards: tuple[RewardTerm, ...] = ()
    """In the config's order."""
    rewards_apart: bool = False
    """Whether each reward is compared inside its group by itself (GDPO) rather than the weighted sum of all: a group is then
    flat only if every reward is, and a rollout is of use as long as one reward is known."""

    @property
    def reward_names(self) -> tuple[str, ...]:
        """The trained rewards, in the config's order."""
        return tuple(term.name for term in self.rewards)

    @property
    def needed_scores(self) -> tuple[str, ...]:
        """Evaluators without which the rewards are not known: theirs, then those that conditions ask."""
        asked = [term.condition.requires for term in self.rewards if term.condition is not None]
        return tuple(dict.fromkeys([*self.reward_names, *asked]))


# ---------------------------------------------------------------------------------------------------------------- events


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
            _require(
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


# ------------------------------------------------------------------------------------------------------- trainable items


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
        _require(len(lengths) == 1, f"ids, mask and logprobs of a segment must have one length, found {lengths}")
        trained = sum(turn.end - turn.start for turn in self.turns)
        _require(
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
        _require(len(self.trajectories) >= 1, "a group needs at least one trajectory")
        others = {
            repr(t.example_id)
            for t in self.trajectories
            if (type(t.example_id), t.example_id) != (type(self.example_id), self.example_id)
        }
        _require(not others, f"a group holds one example ({self.example_id!r}), found also {sorted(others)}")
        names = {frozenset(t.rewards) for t in self.trajectories}
        _require(len(names) == 1, f"trajectories of a group must have the same reward names, found {names}")


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
        _require(self.chosen != self.rejected, "chosen and rejected must differ")
        _require(self.margin is None or self.margin > 0, f"margin must be None or > 0, found {self.margin}")


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


class DropReason(StrEnum):
    """Why something was left out. Each is counted and shown in the report."""

    NO_TURN_ID = "no_turn_id"
    NO_SCORE = "no_score"
    SCORE_NOT_A_NUMBER = "score_not_a_number"
    NO_CONTEXT = "no_context"
    CONTEXT_NOT_MESSAGES = "context_not_messages"
    OUTPUT_NOT_TEXT = "output_not_text"
    SINGLE_CANDIDATE = "single_candidate"
    TIE = "tie"
    SCORE_DIFF = "score_diff"
    CONTEXT_DIFFERS = "context_differs"
    IDENTICAL_TEXT = "identical_text"
    ANSWER_IN_CONTEXT = "answer_in_context"
    MAX_PAIRS_PER_TURN = "max_pairs_per_turn"
    DUPLICATE = "duplicate"
    MERGED = "merged"
    """Another person's equal judgment: its weight went to the pair that was kept."""
    CONTRADICTION = "contradiction"
    """The reverse is preferred elsewhere in the same context."""
    NOT_BEST = "not_best"
    """A candidate beside a better one of its turn, where the best is imitated."""
    LOW_SCORE = "low_score"
    """The best candidate of its turn, but not good enough to imitate."""
    LOW_REWARD = "low_reward"
    """A rollout that did not earn enough to imitate."""
    MIN_CHOSEN_SCORE = "min_chosen_score"
    """The better of two answers that are both unfit."""
    BRIDGES_SPLIT = "bridges_split"
    """A new row that belongs to more than one side of a kept split."""
    MAX_PAIRS = "max_pairs"
    ONE_OF_ITS_SET = "one_of_its_set"
    """In a file without weights one pair stands for its candidate set: this is another one."""
    NOT_IN_FORMAT = "not_in_format"
    """Says more than the format of an exported file can hold."""
    HELD_OUT = "held_out"
    """Of an example that is kept for the test."""
    OUTSIDE_TARGET = "outside_target"
    """A model call outside `target_functions`, or by another model than `target_model`."""
    NO_TOKEN_IDS = "no_token_ids"
    NO_LOGPROBS = "no_logprobs"
    NO_TRAINED_CALL = "no_trained_call"
    """A rollout without a call of the target model inside a target function."""
    UNKNOWN_REWARD = "unknown_reward"
    TOO_FEW_ROLLOUTS = "too_few_rollouts"
    """Fewer than two rollouts with a known reward: nothing to compare."""
    TOO_FEW_REWARDS = "too_few_rewards"
    LOW_SPREAD = "low_spread"
    FLAT_GROUP = "flat_group"
    """All rewards of a group equal: advantage 0, no gradient."""
    CURRICULUM = "curriculum"
    RANDOM_SUBSAMPLE = "random_subsample"
    INFRASTRUCTURE_FAILURE = "infrastructure_failure"
    NOT_A_CANDIDATE = "not_a_candidate"
    """A target call that ended in no preference pair because it proposed no scored candidate."""
    NOT_PAIRED = "not_paired"
    """A scored candidate that ended in no preference pair."""
    SUPERSEDED = "superseded"
    """Work of an attempt that was retried."""
    UNFINISHED = "unfinished"
    """Work of a step that the run did not get to the end of."""
    BAD_RECORD = "bad_record"
    """A row of a preference file that can't be understood; the detail names file, line and reason."""
    TRUNCATED = "truncated"
    """A call of the rollout was cut off by `max_tokens`, and the config leaves such rollouts out or masks them."""
    TOO_LONG = "too_long"
    """Longer than the trainer's limit; never cut silently."""


DroppedWhat = Literal["candidate", "turn", "pair", "group", "rollout", "trajectory", "call", "record", "demonstration"]


@dataclass(frozen=True, slots=True)
class Dropped:
    """Something that was left out, with its reason."""

    what: DroppedWhat
    reason: DropReason
    detail: str = ""
    example_id: ExampleId | None = None
    rollout_id: str | None = None
    call_seq: int | None = None
    """`seq` of the model call that it is about; of a pair the chosen completion's."""
    rejected_call: int | None = None
    """Of a pair: `seq` of the rejected completion's call."""
    record: str | None = None
    """Reviewer record: file and line."""


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
        _require(len(kinds) <= 1, f"a collection holds items of one kind, found {sorted(kinds)}")
        _require(not (self.items and self.handed_over), "a backend that runs the rollouts itself is given no items")


# ------------------------------------------------------------------------------------------------------ updates and jobs


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


@dataclass(frozen=True, slots=True)
class Score:
    """An evaluator's raw output for one rollout or example."""

    value: float | None
    """None: unknown."""
    reasoning: str | None = None
    """Why, in a sentence; kept in `Rollout.reasons`."""


@dataclass(frozen=True, slots=True)
class ScoreRange:
    """The ends of what an evaluator can score; None where there is none or it is not known."""

    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        ordered = self.low is None or self.high is None or self.low < self.high
        _require(ordered, f"the low end of a range must be below the high end: {self.low} to {self.high}")


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95 % interval."""

    mean: float | None
    low: float | None
    high: float | None
    n: int
    """Independent clusters, not rollouts."""


@dataclass(frozen=True, slots=True)
class EvalResult:
    """One policy version on one dataset."""

    split: Literal["train", "validation", "test"]
    policy: PolicyRef | None
    scores: Mapping[str, Mapping[str, float | None]]
    """metric -> `data.keys.example_key(id)` -> the example's mean score, None if unknown."""
    clusters: Mapping[str, str]
    """Example key -> cluster (its task key)."""
    metrics: Mapping[str, Estimate]
    seconds: float


def as_messages(context: str | Sequence[Message]) -> tuple[Message, ...]:
    """The normal form of a context: a text is one user message."""
    return ({"role": "user", "content": context},) if isinstance(context, str) else tuple(context)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)
