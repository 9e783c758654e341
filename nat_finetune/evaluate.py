"""The current policy on a dataset: scores per example, means with intervals, gains paired by example.

An evaluator that can score a policy exactly (`interfaces.PolicyEvaluator`) is asked directly and adds no sampling error; for
the others the workflow runs on every example. Held-out preference pairs are scored by the policy itself. Unknown scores stay
unknown: they are left out of the mean and counted in `n`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

from nat_finetune.data.intervals import estimate
from nat_finetune.data.keys import example_key
from nat_finetune.data.seeds import derive_seed
from nat_finetune.errors import ConfigError, Problem, Stage, StageError, boundary
from nat_finetune.held_pairs import PairEvaluation
from nat_finetune.interfaces import Evaluator, PolicyEvaluator
from nat_finetune.rollout_service import RolloutService, RolloutSettings, as_reward, requests_for
from nat_finetune.steps.collected import require_some_success
from nat_finetune.tracing.traced import TracedFunction
from nat_finetune.types import EvalResult, Example, PolicyRef, Rollout

_GO_ON = "--debug shows where; a run goes on with --resume once it is mended"


@dataclass(frozen=True, slots=True)
class EvalSettings:
    """How to evaluate."""

    split: Literal["train", "validation", "test"]
    metrics: tuple[str, ...]
    generations: int
    seed: int
    confidence: float = 0.95


class PolicyEvaluation:
    """Evaluates policies on one held-out set (examples, preference pairs or both) with one set of metrics."""

    def __init__(
        self,
        examples: Sequence[Example],
        clusters: Mapping[str, str],
        evaluators: Mapping[str, Evaluator],
        workflow: TracedFunction | None,
        rollouts: RolloutSettings,
        settings: EvalSettings,
        *,
        enter_rollout: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
        pairs: PairEvaluation | None = None,
    ) -> None:
        self._examples = list(examples)
        self._exact = {name: e for name, e in evaluators.items() if isinstance(e, PolicyEvaluator)}
        self._sampled = {name: e for name, e in evaluators.items() if name not in self._exact}
        self._workflow = workflow
        self._rollouts = rollouts
        self._settings = settings
        self._enter_rollout = enter_rollout
        self._pairs = pairs
        self._keys = list(clusters)
        self.clusters = {**clusters, **(pairs.held.clusters if pairs is not None else {})}

    async def evaluate(self, policy: PolicyRef | None, *, on_done: Callable[[Rollout], None] = lambda _: None) -> EvalResult:
        """Score the policy as it is now.

        The rollouts of an example have the same seeds in every evaluation, so that a comparison of two policies is paired.

        Raises:
            RolloutFailureLimit: the workflow failed on every example, through no fault of the policy: nothing was measured.
        """
        began = time.monotonic()
        scores: dict[str, dict[str, float | None]] = {}
        for name, evaluator in self._exact.items():
            values = await _exact(name, evaluator, self._examples)
            scores[name] = {example_key(e.id): value for e, value in zip(self._examples, values, strict=True)}
        if self._pairs is not None:
            scores |= await self._pairs.scores()
        if self._sampled:
            scores |= await self._sample(policy, on_done)
        metrics = {
            name: estimate(
                scores[name],
                self.clusters,
                seed=derive_seed(self._settings.seed, "bootstrap", name),
                confidence=self._settings.confidence,
            )
            for name in self._settings.metrics
        }
        return EvalResult(
            split=self._settings.split,
            policy=policy,
            scores={name: scores[name] for name in self._settings.metrics},
            clusters=self.clusters,
            metrics=metrics,
            seconds=time.monotonic() - began,
        )

    async def _sample(self, policy: PolicyRef | None, on_done: Callable[[Rollout], None]) -> dict[str, dict[str, float | None]]:
        if self._workflow is None:
            return {name: dict.fromkeys(self._keys) for name in self._sampled}
        service = RolloutService(self._workflow, self._sampled, self._rollouts, enter_rollout=self._enter_rollout)
        requests = requests_for(
            0, self._examples, self._settings.generations, self._settings.seed, purpose=self._settings.split
        )
        rollouts = await service.run(requests, policy_version=policy.version if policy else None, on_done=on_done)
        require_some_success(rollouts, f"{self._settings.split} set")
        known: dict[str, dict[str, list[float]]] = {name: {key: [] for key in self._keys} for name in self._sampled}
        for rollout in rollouts:
            for name, value in rollout.rewards.items():
                if value is not None:
                    known[name][example_key(rollout.example_id)].append(value)
        return {
            name: {key: sum(values) / len(values) if values else None for key, values in by_example.items()}
            for name, by_example in known.items()
        }


async def _exact(name: str, evaluator: PolicyEvaluator, examples: list[Example]) -> list[float | None]:
    """What an evaluator says of the policy itself; it scores all examples at once, so its failure leaves nothing known."""
    try:
        with boundary(Stage.EVALUATOR):
            values = list(await evaluator.evaluate_policy(examples))
            if len(values) != len(examples):
                raise ValueError(f"{len(values)} scores for {len(examples)} examples")
            return [as_reward(value) for value in values]
    except StageError as error:
        problem = Problem(f"evaluate_policy failed: {error.error_type}: {error}", f"eval.evaluators.{name}", hint=_GO_ON)
        raise ConfigError(problem) from error
