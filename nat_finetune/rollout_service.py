"""(example, workflow) to a traced, scored rollout: what `collect` and `evaluate` use.

Many rollouts run at once. Each has its own recorder, seed and timeout. What fails inside is attributed to a stage and kept:
a failure that the policy caused is an outcome with a reward, any other leaves the rewards unknown and may be retried in a fresh
rollout; the attempt that it replaces is kept too, so that its tokens are accounted for.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import SupportsFloat, TypeVar

from nat_finetune.data.seeds import derive_seed
from nat_finetune.errors import InfrastructureFailure, Stage, StageError, boundary
from nat_finetune.interfaces import Evaluator
from nat_finetune.tracing import record
from nat_finetune.tracing.context import recording
from nat_finetune.tracing.recorder import Recorder, plain
from nat_finetune.tracing.traced import TracedFunction
from nat_finetune.types import Cause, Example, Failure, Rollout, Score

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
    step: int, examples: Sequence[Example], generations: int, seed: int, purpose: str = "step"
) -> list[RolloutRequest]:
    """The rollouts of one step: `generations` of each example, with ids that sort in this order and seeds of their own."""
    return [
        RolloutRequest(
            rollout_id=f"{purpose}{step:05d}-{position:05d}-{generation:03d}",
            example=example,
            generation=generation,
            seed=derive_seed(seed, purpose, step, example.id, generation),
        )
        for position, example in enumerate(examples)
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
        self._settings = settings
        self._enter_rollout = enter_rollout

    async def run(
        self,
        requests: Sequence[RolloutRequest],
        *,
        policy_version: int | None,
        trained_rewards: Sequence[str] = (),
        on_done: Callable[[Rollout], None] = lambda _: None,
    ) -> list[Rollout]:
        """Run all; returns every attempt, the final one of each request last, in the order of the requests.

        `on_done` is called in the order of the requests' completion, as each is scored.
        """
        gate = asyncio.Semaphore(self._settings.max_concurrency)

        async def one(request: RolloutRequest) -> list[Rollout]:
            await gate.acquire()
            # The engine hears of the end only after the next rollout may begin: in lockstep no batch goes without it.
            with self._enter_rollout(request.rollout_id):
                try:
                    attempts = await self._attempts(request, policy_version, trained_rewards)
                finally:
                    gate.release()
            for rollout in attempts:
                on_done(rollout)
            return attempts

        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(one(request)) for request in requests]
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None  # the others were cancelled on its account
        return [rollout for task in running for rollout in task.result()]

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
        recorder = Recorder(rollout.rollout_id, rollout.seed)
        rewards: dict[str, float | None] = {}
        failures: list[Failure] = []
        for name, evaluator in self._evaluators.items():
            value, failure = await self._score(recorder, name, evaluator, example, rollout)
            if rollout.failure is not None and name in trained_rewards and self._settings.failure_reward is not None:
                value = self._settings.failure_reward
            rewards[name] = value
            failures += [failure] if failure else []
        after = (rollout.events[-1].seq + 1) if rollout.events else 0
        events = tuple(replace(event, seq=after + offset) for offset, event in enumerate(failures))
        return replace(rollout, rewards=rewards, events=rollout.events + events)

    async def _score(
        self, recorder: Recorder, name: str, evaluator: Evaluator, example: Example, rollout: Rollout
    ) -> tuple[float | None, Failure | None]:
        """The score; what can't be a reward (an exception, NaN, a text) is unknown, with a Failure that says why."""
        try:
            with boundary(Stage.EVALUATOR):
                return as_reward(await self._within_timeout(evaluator(example, rollout))), None
        except StageError as error:
            message = f"evaluator {name}: {error}"
            return None, record.failure(
                recorder, stage=Stage.EVALUATOR, cause=Cause.INFRASTRUCTURE, error_type=error.error_type, message=message
            )


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
