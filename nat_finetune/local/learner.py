"""What an update works with, made once for a run; and one update from encoded items to a new policy version."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nat_finetune.data.seeds import derive_seed
from nat_finetune.errors import BackendError
from nat_finetune.local.agreement import Canary, trainer_scores
from nat_finetune.local.lora import attach_lora
from nat_finetune.local.optimise import Learner, Objective, mean_metrics, optimise
from nat_finetune.local.optimiser import Optimiser
from nat_finetune.local.policy import LocalPolicy
from nat_finetune.local.reference_cache import ReferenceCache
from nat_finetune.local.scores import TrainerScorer
from nat_finetune.local.settings import LoopSettings, LoraSettings, OptimiserSettings
from nat_finetune.local.weights import Reference, TrainedWeights
from nat_finetune.types import PolicyRef


def make_learner(
    policy: LocalPolicy,
    optimiser: OptimiserSettings,
    *,
    lora: LoraSettings | None,
    needs_reference: bool,
    seed: int,
    folder: Path | None = None,
) -> Learner:
    """Make a policy trainable: with an adapter, from which it also samples from now on, or with all of its weights.

    Make it before a checkpoint is loaded: the reference is the policy as it is now. Its logprobs are kept below `folder`.
    """
    cache = ReferenceCache(None if folder is None else folder / "reference", policy.digest)
    if lora is not None:
        policy.attach(attach_lora(policy.model, lora, seed=derive_seed(seed, "lora")))
    weights = TrainedWeights(policy.model)
    return Learner(
        model=policy.model,
        weights=weights,
        optimiser=Optimiser(weights, optimiser),
        scorer=TrainerScorer(policy.model),
        reference=Reference(policy.model, weights) if needs_reference else None,
        reference_cache=cache,
    )


@dataclass(frozen=True, slots=True)
class Trained:
    """What one update did to the policy."""

    policy: PolicyRef
    metrics: dict[str, float]
    curve: tuple[dict[str, float], ...]
    canary_scores: list[list[list[float]]]
    """The trainer's logprobs of each canary after the update, nats."""
    changed: bool
    """Whether the digest of the weights is another one."""
    seconds: float


def train_policy(
    policy: LocalPolicy,
    learner: Learner,
    objective: Objective,
    settings: LoopSettings,
    canaries: Sequence[Canary],
    *,
    seed: int,
    progress: Callable[[float], None],
    cancelled: Callable[[], bool],
) -> Trained:
    """Make one update while nothing is sampled; blocks, so call it from a thread of its own.

    Raises:
        BackendError: see `optimise`; the policy keeps its version, and the optimiser says how many steps were made.
    """
    began = time.monotonic()
    with policy.exclusive():
        before = learner.weights.digest()
        done = optimise(learner, objective, settings, seed=seed, progress=progress, cancelled=cancelled)
        digest = learner.weights.digest()
        if not done.curve:
            raise BackendError("the update made no optimiser step")
        return Trained(
            policy=policy.updated(digest),
            metrics=mean_metrics(done.curve) | done.metrics,
            curve=done.curve,
            canary_scores=trainer_scores(canaries, learner.scorer),
            changed=digest != before,
            seconds=time.monotonic() - began,
        )
