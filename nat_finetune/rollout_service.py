"""(example, workflow) to a traced, scored rollout: what `collect` and `evaluate` use.

Many rollouts run at once. Each has its own recorder, seed and timeout. What fails inside is attributed to a stage and kept:
a failure that the policy caused is an outcome with a reward, any other leaves the rewards unknown and may be retried in a fresh
rollout; the attempt that it replaces is kept too, so that its tokens are accounted for.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import SupportsFloat, TypeVar

from nat_finetune.data.keys import example_key
from nat_finetune.data.seeds import derive_seed
from nat_finetune.errors import InfrastructureFailure, Stage, StageError, boundary
from nat_finetune.interfaces import Evaluator, GroupEvaluator
from nat_finetune.tracing import record
from nat_finetune.tracing.context import recording
from nat_finetune.tracing.recorder import Recorder, plain, writable
from nat_finetune.tracing.traced import TracedFunction
from nat_finetune.types import Cause, Example, Rollout, Score

T = TypeVar("T")

_LARGEST_REWARD = 1e18
"""Beyond it the square of a reward, which scaled advantages need, leaves the range of float32."""


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """One rollout to run."""

    rollout_id: str
    example: Example
    generation: int
    seed: int


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """How rollouts run."""

    max_concurrency: int
    timeout_seconds: float | None
    retries: int
    """Further attempts after an infrastructure failure."""
    failure_reward: float | None
    """What a policy failure earns in the trained rewards; None: what the evaluators say."""


def requests_for(
    step: int, examples: Sequence[Example], generations: int, seed: int, purpose: str = "step", first: int = 0
) -> list[RolloutRequest]:
    """The rollouts of one step: `generations` of each example, with ids that sort in this order and seeds of their own.

    `first` is the position of the first example in the step: further examples come after the step's own.
    """
    return [
        RolloutRequest(
            rollout_id=f"{purpose}{step:05d}-{position:05d}-{generation:03d}",
            example=example,
            generation=generation,
            seed=derive_seed(seed, purpose, step, example.id, generation),
        )
        for position, example in enumerate(examples, start=first)
        for generation in range(generations)
    ]


class RolloutService:
    """Runs rollouts of one workflow and scores them.

    `enter_rollout(rollout_id)` is held while a rollout runs; the engine's lockstep admission needs to know which do.
    """

    def __init__(
        self,
        workflow: TracedFunction,
        evaluators: Mapping[str, Evaluator],
        settings: RolloutSettings,
        *,
        enter_rollout: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
    ) -> None:
        self._workflow = workflow
        self._evaluators = evaluators
        self._comparing = {name: e for name, e in evaluators.items() if isinstance(e, GroupEvaluator)}
        self._settings = settings
        self._enter_rollout = enter_rollout

    async def run(
        self,
        requests: Sequence[RolloutRequest],
        *,
        policy_version: int | None,
        trained_rewards: Sequence[str] = (),
        on_done: Callable[[Rollout], None] = lambda _: None,
        beside: Sequence[Rollout] = (),
    ) -> list[Rollout]:
        """Run all; returns every attempt, the final one of each request last, in the order of the requests.

        `on_done` is called in the order of the requests' completion, as each is scored: where an evaluator compares the
        rollouts of an example, once all of these have ended. `beside` are rollouts of the same examples that are scored
        already; such an evaluator sees them too.
        """
        gate = asyncio.Semaphore(self._settings.max_concurrency)
        groups = _Groups(requests, beside, whole=bool(self._comparing))
        done: dict[str, Rollout] = {}

        async def one(request: RolloutRequest) -> None:
            await gate.acquire()
            # The engine hears of the end only after the next rollout may begin: in lockstep no batch goes without it.
            with self._enter_rollout(request.rollout_id):
                try:
                    ended = groups.end(request, await self._attempts(request, policy_version, trained_rewards))
                    scored = await self._compared(request.example, ended, groups.beside(request.example), trained_rewards)
                finally:
                    gate.release()
            for rollout in scored:
                done[rollout.rollout_id] = rollout
                on_done(rollout)

        try:
            async with asyncio.TaskGroup() as tasks:
                for request in requests:
                    tasks.create_task(one(request))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None  # the others were cancelled on its account
        return [done[rollout_id] for request in requests for rollout_id in groups.attempts(request)]

    async def _attempts(
        self, request: RolloutRequest, policy_version: int | None, trained_rewards: Sequence[str]
    ) -> list[Rollout]:
        attempts: list[Rollout] = []
        for attempt in range(self._settings.retries + 1):
            final_id = request.rollout_id
            seed = request.seed if attempt == 0 else derive_seed(request.seed, "attempt", attempt)
            rollout = await self._attempt(request, seed, policy_version)
            attempts.append(replace(rollout, attempts=attempt + 1))
            if rollout.failure is None or rollout.failure.cause is Cause.POLICY:
                break
            if attempt < self._settings.retries:
                attempts[-1] = replace(attempts[-1], rollout_id=f"{final_id}~{attempt + 1}")
        return [*attempts[:-1], await self._scored(request.example, attempts[-1], trained_rewards)]

    async def _attempt(self, request: RolloutRequest, seed: int, policy_version: int | None) -> Rollout:
        recorder = Recorder(request.rollout_id, seed)
        output, failure = None, None
        with recording(recorder):
            try:
                with boundary(Stage.WORKFLOW):
                    output = await self._within_timeout(self._workflow(request.example))
            except StageError as error:
                failure = record.failure(
                    recorder, stage=error.stage, cause=error.cause, error_type=error.error_type, message=str(error)
                )
        return Rollout(
            rollout_id=request.rollout_id,
            example_id=request.example.id,
            generation=request.generation,
            seed=seed,
            events=recorder.events,
            output=plain(output),
            rewards=dict.fromkeys(self._evaluators),
            failure=failure,
            policy_version=policy_version,
        )

    async def _within_timeout(self, work: Awaitable[T]) -> T:
        """Wait for users' code, in time; a cancellation that nobody asked for is a failure of its own."""
        seconds = self._settings.timeout_seconds
        try:
            async with asyncio.timeout(seconds) as timer:
                return await work
        except TimeoutError as error:
            if not timer.expired():
                raise
            raise InfrastructureFailure(
                f"took longer than finetuning.rollout_timeout_seconds = {seconds}", stage=Stage.TIMEOUT
            ) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise InfrastructureFailure(
                "cancelled from inside: a task that it waited for was cancelled", error_type="CancelledError"
            ) from error

    async def _scored(self, example: Example, rollout: Rollout, trained_rewards: Sequence[str]) -> Rollout:
        if rollout.failure is not None and rollout.failure.cause is Cause.INFRASTRUCTURE:
            return rollout
        for name, evaluator in self._evaluators.items():
            if name not in self._comparing:
                result = await self._score(evaluator, example, rollout)
                rollout = self._rewarded(rollout, name, result, trained_rewards)
        return rollout

    async def _compared(
        self, example: Example, ended: Sequence[Rollout], beside: Sequence[Rollout], trained_rewards: Sequence[str]
    ) -> list[Rollout]:
        """The rollouts with the scores of the evaluators that compare them with one another and with those `beside`."""
        scored = {rollout.rollout_id: rollout for rollout in ended}
        for name, evaluator in self._comparing.items():
            members = sorted(filter(_counts, (*ended, *beside)), key=lambda rollout: rollout.rollout_id)
            results = await self._score_group(evaluator, example, members)
            for member, result in zip(members, results, strict=True):
                if member.rollout_id in scored:
                    rollout = scored[member.rollout_id]
                    scored[member.rollout_id] = self._rewarded(rollout, name, result, trained_rewards)
        return list(scored.values())

    async def _score(self, evaluator: Evaluator, example: Example, rollout: Rollout) -> Score | StageError:
        """The score, or why there is none: an exception, NaN, a text."""
        try:
            with boundary(Stage.EVALUATOR):
                return as_score(await self._within_timeout(evaluator(example, rollout)))
        except StageError as error:
            return error

    async def _score_group(
        self, evaluator: GroupEvaluator, example: Example, members: Sequence[Rollout]
    ) -> list[Score | StageError]:
        if not members:
            return []
        try:
            with boundary(Stage.EVALUATOR):
                results = list(await self._within_timeout(evaluator.evaluate_group(example, members)))
                if len(results) != len(members):
                    raise ValueError(f"{len(results)} scores for {len(members)} rollouts")
        except StageError as error:
            return [error] * len(members)
        return [_score_or_error(result) for result in results]

    def _rewarded(self, rollout: Rollout, name: str, result: Score | StageError, trained_rewards: Sequence[str]) -> Rollout:
        """The rollout with one more reward; an unknown one leaves a Failure that says why."""
        events, reasons = rollout.events, dict(rollout.reasons)
        if isinstance(result, StageError):
            failure = record.failure(
                Recorder(rollout.rollout_id, rollout.seed),
                stage=Stage.EVALUATOR,
                cause=Cause.INFRASTRUCTURE,
                error_type=result.error_type,
                message=f"evaluator {name}: {result}",
            )
            events = (*events, replace(failure, seq=events[-1].seq + 1 if events else 0))
            result = Score(None)
        value, reason = result.value, result.reasoning
        if rollout.failure is not None and name in trained_rewards and self._settings.failure_reward is not None:
            value, reason = self._settings.failure_reward, None
        if reason is not None:
            reasons[name] = writable(reason)
        return replace(rollout, rewards={**rollout.rewards, name: value}, reasons=reasons, events=events)


def _counts(rollout: Rollout) -> bool:
    """Whether a rollout says something about the policy: it is a final attempt and did not fail by accident."""
    return "~" not in rollout.rollout_id and (rollout.failure is None or rollout.failure.cause is Cause.POLICY)


class _Groups:
    """Which rollouts of an example are still to come; holds back those that ended where they are compared as a whole."""

    def __init__(self, requests: Sequence[RolloutRequest], beside: Sequence[Rollout], *, whole: bool) -> None:
        self._open = Counter(example_key(request.example.id) for request in requests)
        self._beside = beside
        self._whole = whole
        self._ended: dict[str, list[Rollout]] = {key: [] for key in self._open}
        self._attempts: dict[str, list[str]] = {}

    def end(self, request: RolloutRequest, attempts: Sequence[Rollout]) -> list[Rollout]:
        """What may be scored to the end now: these attempts, or those of the whole example once its last rollout has ended."""
        self._attempts[request.rollout_id] = [attempt.rollout_id for attempt in attempts]
        if not self._whole:
            return list(attempts)
        key = example_key(request.example.id)
        self._open[key] -= 1
        self._ended[key] += attempts
        return [] if self._open[key] else self._ended[key]

    def beside(self, example: Example) -> list[Rollout]:
        """Rollouts of the example that were scored earlier."""
        key = example_key(example.id)
        return [rollout for rollout in self._beside if example_key(rollout.example_id) == key]

    def attempts(self, request: RolloutRequest) -> list[str]:
        """Ids of a request's attempts, the final one last."""
        return self._attempts[request.rollout_id]


def _score_or_error(result: object) -> Score | StageError:
    try:
        return as_score(result)
    except StageError as error:
        return error


def as_score(result: object) -> Score:
    """A score of any form with its reason.

    Raises:
        InfrastructureFailure: it is no number that can be a reward.
    """
    return Score(as_reward(result), result.reasoning if isinstance(result, Score) else None)


def as_reward(result: object) -> float | None:
    """A number of any library, such as numpy's or a tensor of one element, as a float.

    Raises:
        InfrastructureFailure: it is none that can be a reward.
    """
    given = result.value if isinstance(result, Score) else result
    if given is None:
        return None
    value = float(given) if isinstance(given, SupportsFloat) else math.nan
    if abs(value) <= _LARGEST_REWARD:
        return value
    raise InfrastructureFailure(
        f"expected a finite number (of at most {_LARGEST_REWARD:g}) or None, found {given!r}",
        stage=Stage.EVALUATOR,
        error_type="NotANumber",
    )
