"""The seams: what a workflow, a builder, an adapter, a trainer and the rest must offer, as protocols.

Components are made by factories (see `nat_finetune.registry`) that get a `Builder` and yield one instance. Core code
knows these protocols and nothing of the implementations.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from nat_finetune.data.selection import SelectionRules
from nat_finetune.types import (
    Collection,
    Dropped,
    Example,
    FinishReason,
    Item,
    JobSpec,
    Message,
    PairScore,
    PolicyRef,
    PreferencePair,
    Record,
    Rollout,
    SamplingParams,
    Score,
    ScoreRange,
    Target,
    TrainingJobRef,
    TrainingJobStatus,
    UpdateResult,
)


@dataclass(frozen=True, slots=True)
class ChatReply:
    """What a chat model answers, with what it sampled where the backend knows."""

    message: Message
    finish_reason: FinishReason
    sampling: SamplingParams
    policy: PolicyRef | None = None
    prompt_ids: tuple[int, ...] | None = None
    completion_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    """Nats, at the sampling temperature."""
    call_seq: int | None = None
    """`seq` of the recorded event; set by the tracer, for `tracing.candidate(call_seq=...)`."""

    @property
    def text(self) -> str:
        """The reply's text, "" where it only calls tools."""
        return self.message.get("content") or ""


@runtime_checkable
class ChatModel(Protocol):
    """An entry of `llms`."""

    @property
    def name(self) -> str:
        """Its name in the config."""

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        stop: Sequence[str] | None = None,
        seed: int | None = None,
    ) -> ChatReply:
        """One completion; what is None comes from the config.

        Raises:
            BackendError: the engine or endpoint failed for good.
            PolicyFailure: the prompt leaves no room for a completion.
        """


@runtime_checkable
class ScoringChatModel(ChatModel, Protocol):
    """A chat model that can say how probable given completions are: what exact evaluation needs."""

    async def score(self, prompts: Sequence[Sequence[Message]], completions: Sequence[Sequence[str]]) -> list[list[float]]:
        """Log-probability (nats, at the configured temperature and `max_tokens`) that sampling gives just this completion.

        `completions[p]` are the texts to score after `prompts[p]`. The end-of-turn token counts where `max_tokens` leaves
        room for it.
        """


class Builder(Protocol):
    """What factories get: the other entries of the config, by name, made on first use."""

    @property
    def entry_name(self) -> str:
        """Name of the config's entry that is being made."""

    @property
    def target(self) -> Target:
        """What this run trains."""

    @property
    def seed(self) -> int:
        """`finetuning.seed`."""

    @property
    def deterministic(self) -> bool:
        """`finetuning.deterministic`."""

    @property
    def folder(self) -> Path | None:
        """The run folder, for what need not be computed twice; None where nothing is trained."""

    async def get_llm(self, name: str) -> ChatModel:
        """An entry of `llms`; its calls are recorded."""

    async def get_function(self, name: str) -> Callable[..., Awaitable[Any]]:
        """An entry of `functions`; its calls are recorded under its name. `.inner` is what the factory yielded."""

    async def get_ttc_strategy(self, name: str) -> Any:
        """An entry of `ttc_strategies`."""

    async def get_evaluator(self, name: str) -> Evaluator:
        """An entry of `eval.evaluators`."""

    async def get_policy(self) -> Any:
        """The `local.policy.LocalPolicy` of the target model; BackendError where it is not local."""


Workflow = Callable[[Example], Awaitable[Any]]
"""The agent program: gets an example, returns its output."""

Evaluator = Callable[[Example, Rollout], Awaitable[float | Score | None]]
"""Scores one rollout; None is unknown. It also sees rollouts that the policy made fail (`rollout.failure`)."""


@runtime_checkable
class PolicyEvaluator(Protocol):
    """An evaluator that can also score a policy on examples exactly, without rollouts."""

    async def __call__(self, example: Example, rollout: Rollout) -> float | Score | None:
        """As `Evaluator`."""

    async def evaluate_policy(self, examples: Sequence[Example]) -> list[float | None]:
        """The expected score of the current policy on each example, without sampling error."""


@runtime_checkable
class ReferencedEvaluator(Protocol):
    """An evaluator that knows what known policies score: the ends of the scale on which a gain is read."""

    def references(self, examples: Sequence[Example]) -> Mapping[str, float]:
        """Name of a known policy (`uniform`, `best_response`, ...) to its mean score on these examples."""


@runtime_checkable
class AnnotatingEvaluator(Protocol):
    """An evaluator that has something to say about the data."""

    async def notes(self, train: Sequence[Example], test: Sequence[Example]) -> list[str]:
        """Sentences for the report, such as how much of what the test visits was seen in training."""


@runtime_checkable
class RangedEvaluator(Protocol):
    """An evaluator that knows the lowest and highest score it can give: what tells "nothing left to learn" from "broken"."""

    @property
    def score_range(self) -> ScoreRange:
        """The ends, as far as they are known."""

    async def __call__(self, example: Example, rollout: Rollout) -> float | Score | None:
        """As `Evaluator`."""


@dataclass(frozen=True, slots=True)
class KnownOutputs:
    """Outputs of a workflow of which it is known what they are worth."""

    gold: Sequence[Any] = ()
    """As good as can be."""
    bad: Sequence[Any] = ()


@runtime_checkable
class KnowingEvaluator(Protocol):
    """An evaluator that knows good and bad outputs, where the dataset's answer is no output of the workflow."""

    def known_outputs(self, example: Example) -> KnownOutputs:
        """What calibration scores before the first step; nothing where nothing is known."""

    async def __call__(self, example: Example, rollout: Rollout) -> float | Score | None:
        """As `Evaluator`."""


@runtime_checkable
class GroupEvaluator(Protocol):
    """An evaluator that compares the rollouts of one example with one another; it is asked once all of them have ended."""

    async def __call__(self, example: Example, rollout: Rollout) -> float | Score | None:
        """What can be said of a rollout alone; None where nothing can."""

    async def evaluate_group(self, example: Example, rollouts: Sequence[Rollout]) -> Sequence[float | Score | None]:
        """One score per rollout, in their order; those that failed through no fault of the policy are not among them."""


@runtime_checkable
class ObservingEvaluator(Protocol):
    """An evaluator that watches itself while it scores."""

    def observed(self) -> list[str]:
        """Sentences for the report, asked for at the end of the run: how often it agreed with itself, what failed."""


class DatasetLoader(Protocol):
    """Reads examples."""

    def load(self) -> Iterator[Example]:
        """All examples, in a stable order.

        Raises:
            DataError: the source is missing, empty or malformed; names file and line.
        """


@runtime_checkable
class RecordLoader(Protocol):
    """A dataset loader that also gives rows as they are written."""

    def records(self) -> Iterator[Record]:
        """All rows, in a stable order, read as a stream; one that can't be read has a `problem`.

        Raises:
            DataError: the source is missing, or can't be read on.
        """


class RecordBuilder(Protocol):
    """Records of a dataset to trainable items. Pure: no IO, no model, no randomness; its config names the dataset."""

    def build(self, records: Iterable[Record]) -> Iterator[Item | Dropped]:
        """Items, and everything that was left out with its reason.

        Raises:
            DataError: records can't be used, and the config does not say to skip them; names all of them.
        """

    def notes(self) -> list[str]:
        """Sentences for the run's account: how the records were read. Complete after `build`."""


class TrajectoryBuilder(Protocol):
    """Rollouts to trainable items. Pure: no IO, no model, no randomness."""

    @property
    def generations(self) -> int:
        """Rollouts needed of each example."""

    def build(self, rollouts: Iterable[Rollout]) -> Iterator[Item | Dropped]:
        """Items, and everything that was left out with its reason."""


class TrainerAdapter(Protocol):
    """Trainable items to a backend that computes the update."""

    async def health(self) -> None:
        """Raise BackendError if the backend can't train."""

    async def prepare(self, collection: Collection, reference: PolicyRef | None) -> JobSpec:
        """Check and encode the items; the spec is persisted before `submit`."""

    async def submit(self, spec: JobSpec) -> TrainingJobRef:
        """Start the update; submitting the same key twice starts it once."""

    async def status(self, ref: TrainingJobRef) -> TrainingJobStatus:
        """Where it stands."""

    async def wait(self, ref: TrainingJobRef) -> TrainingJobStatus:
        """Wait until it ends."""

    async def cancel(self, ref: TrainingJobRef) -> None:
        """Stop it."""

    async def logs(self, ref: TrainingJobRef) -> list[str]:
        """The backend's own lines."""

    async def result(self, ref: TrainingJobRef) -> UpdateResult:
        """What it did; BackendError with the backend's reason if it failed."""

    def save_state(self, folder: Path) -> None:
        """Write all that a resume needs (weights, optimiser, counters) into a folder."""

    def load_state(self, folder: Path) -> None:
        """Continue from such a folder."""


@runtime_checkable
class PairScorer(Protocol):
    """A trainer adapter that can say what its policy makes of preference pairs that are held out."""

    async def score_pairs(self, pairs: Sequence[PreferencePair]) -> list[PairScore | None]:
        """One for each pair, encoded as for an update; None where a side is too long for that."""


@dataclass(frozen=True, slots=True)
class Step:
    """One pass of collect, build, select, update."""

    index: int
    """Counts from 0 over the whole run."""
    epoch: int
    examples: tuple[Example, ...]
    last_of_epoch: bool = False
    validated: bool = False
    """Whether the validation set is looked at after it."""


@dataclass(frozen=True, slots=True)
class Round:
    """Passes over all examples, then updates on what was built of them."""

    index: int
    passes: tuple[Step, ...]
    warm_ups: tuple[Step, ...]
    updates: tuple[Step, ...]
    """The first update, or the first warm-up, has the number of the last pass: together they are a step."""


@dataclass(frozen=True, slots=True)
class Built:
    """What a trajectory builder made of one or several steps' rollouts."""

    step: int
    items: tuple[Item, ...]
    dropped: tuple[Dropped, ...]


@runtime_checkable
class WarningBuilder(Protocol):
    """A trajectory builder that can tell from what it made that something is likely wrong."""

    def warnings(self, built: Built) -> list[str]:
        """Sentences for console and report, each said once in a run: no figures in them."""


class TrainingRun(Protocol):
    """What a trainer orders: each method persists its result before it returns, and returns the persisted one on resume."""

    def steps(self) -> AsyncIterator[Step]:
        """`num_epochs` passes over the examples, `examples_per_step` at a time; finished ones are left out on resume."""

    def rounds(self, count: int, *, passes: int, warm_ups: int = 0) -> AsyncIterator[Round]:
        """`count` rounds of `passes` over all examples and `num_epochs` updates each, `warm_ups` before those of the first."""

    def pending(self, steps: Sequence[Step]) -> AsyncIterator[Step]:
        """Those of a round's updates that are not done yet; none any more once the training has reached its end."""

    def hold_reference(self) -> None:
        """From now on preferences are held against the policy as it is now."""

    async def collect(self, step: Step) -> list[Rollout]:
        """Run the workflow on the step's examples and score the rollouts; RolloutFailureLimit where too many failed."""

    def build(self, rollouts: Sequence[Rollout], *, step: int) -> Built:
        """Apply the trajectory builder."""

    async def select(self, built: Built, rules: SelectionRules | None = None) -> Collection:
        """Apply the filters that the config names, and give pairs their weights; what is left out is counted.

        Raises:
            NoTrainableSignal: there was nothing to train on for `finetuning.flat_patience` steps in a row.
        """

    async def update(self, collection: Collection, step: Step, *, wait: bool = True) -> UpdateResult | None:
        """Have the adapter train, save a checkpoint; None: nothing to train on. Unless `wait`, Detached once a job is sent."""

    async def hand_over(self) -> None:
        """Have a backend that runs the rollouts itself do the whole training as one job, then validate; nothing on resume."""

    def warn(self, text: str) -> None:
        """Say something on the console and in the report."""

    async def validate_if_due(self, step: Step) -> None:
        """Evaluate on the validation set where its interval says so, and after the last step."""


class Trainer(Protocol):
    """The order of steps."""

    async def train(self, run: TrainingRun) -> None:
        """Drive the run to its end."""
