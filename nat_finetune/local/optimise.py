"""One update: optimiser steps over items, each made of micro-batches whose gradients add up to that of the whole."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch

from nat_finetune.algorithms.logprobs import TokenScores
from nat_finetune.algorithms.policy_gradient import LossOutput, combine
from nat_finetune.data.batches import MicroBatch, Rows
from nat_finetune.data.seeds import derive_seed
from nat_finetune.data.sharing import Plan
from nat_finetune.errors import BackendError
from nat_finetune.local.budget import TokenBudget
from nat_finetune.local.optimiser import Optimiser
from nat_finetune.local.reference_cache import ReferenceCache
from nat_finetune.local.scores import TrainerScorer
from nat_finetune.local.settings import LoopSettings
from nat_finetune.local.weights import Reference, TrainedWeights

Unit = tuple[int, ...]
"""Rows that must share a micro-batch: one of a rollout, two of a pair."""


Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True)
class Learner:
    """What an update works with; lives as long as the run."""

    model: Any
    weights: TrainedWeights
    optimiser: Optimiser
    scorer: TrainerScorer
    reference: Reference | None
    """None where the algorithm needs none."""
    reference_cache: ReferenceCache
    budget: TokenBudget = field(default_factory=TokenBudget)
    """Of tokens that are read at once."""


class Objective(Protocol):
    """What is to be made smaller."""

    rows: Rows

    @property
    def items(self) -> Sequence[Sequence[Unit]]:
        """The units of each item."""

    def begin(self, learner: Learner, plans: Sequence[Plan], *, single_step: bool) -> Mapping[str, float]:
        """Before the first step: score what must not move (reference, old policy) into columns. Returns metrics."""

    def step(self, items: Sequence[int]) -> Callable[[MicroBatch, TokenScores, Sequence[int]], LossOutput]:
        """The loss of an optimiser step on these items: each micro-batch gives its share.

        The last argument says which units are in the micro-batch: places in those of all the step's items, one after another.
        """

    def check(self, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """Look at what the first step's passes measured, before any weight is changed. Returns further metrics."""


@dataclass(frozen=True, slots=True)
class Optimised:
    """What an update measured."""

    curve: tuple[dict[str, float], ...]
    """For each optimiser step."""
    metrics: dict[str, float]
    """Measured once, at the beginning."""


class Cancelled(BackendError):
    """Raised between optimiser steps when the update was told to stop; the weights are somewhere in between."""


def optimise(
    learner: Learner,
    objective: Objective,
    settings: LoopSettings,
    *,
    seed: int,
    progress: Callable[[float], None],
    cancelled: Callable[[], bool],
) -> Optimised:
    """Make all optimiser steps of one update.

    Args:
        learner: model, optimiser and reference; changed in place.
        objective: items and loss.
        settings: number and size of the steps.
        seed: of the order of the items.
        progress: told the share done, 0 to 1.
        cancelled: asked before every optimiser step.

    Raises:
        BackendError: out of memory, a gradient that is not finite, or `Cancelled`.
        AgreementError: the sampler's logprobs are not the trainer's (see `Objective.check`).
    """
    steps = list(item_order(len(objective.items), settings, seed))
    curve: list[dict[str, float]] = []
    everything = [unit for units in objective.items for unit in units]
    with _checkpointing(learner.model, settings.activation_checkpointing):

        def begin(tokens: int) -> Mapping[str, float]:
            plans = learner.scorer.plans(objective.rows, everything, tokens)
            return objective.begin(learner, plans, single_step=len(steps) == 1)

        metrics = dict(_within_memory(learner, settings, begin))
        for index, items in enumerate(steps):
            if cancelled():
                raise Cancelled(f"the update was cancelled after {index} of {len(steps)} optimiser steps")

            def partly(share: float, done: int = index) -> None:
                progress((done + share) / len(steps))

            def accumulate(
                tokens: int, items: Sequence[int] = items, partly: Callable[[float], None] = partly
            ) -> dict[str, float]:
                return _accumulate(learner, objective, items, tokens, partly)

            measured = _within_memory(learner, settings, accumulate)
            if index == 0:
                metrics |= objective.check({**metrics, **measured})
            curve.append({**measured, **learner.optimiser.step()})
    metrics["microbatch_tokens"] = float(_tokens(learner, settings))
    if learner.budget.retries:
        metrics["out_of_memory_retries"] = float(learner.budget.retries)
    return Optimised(tuple(curve), metrics)


def item_order(count: int, settings: LoopSettings, seed: int) -> Iterator[list[int]]:
    """Items of each optimiser step: every epoch goes over all of them, in an order of its own."""
    size = settings.batch_size or count
    for epoch in range(settings.epochs):
        order = list(range(count))
        random.Random(derive_seed(seed, "shuffle", epoch)).shuffle(order)
        for start in range(0, count, size):
            yield sorted(order[start : start + size])


def _accumulate(
    learner: Learner,
    objective: Objective,
    items: Sequence[int],
    tokens: int,
    progress: Callable[[float], None],
) -> dict[str, float]:
    """Gather the gradient of one optimiser step in micro-batches of so many tokens; returns its metrics."""
    units = [unit for item in items for unit in objective.items[item]]
    plans = learner.scorer.plans(objective.rows, units, tokens)
    loss = objective.step(items)
    outputs: list[LossOutput] = []
    for index, plan in enumerate(plans):
        batch = objective.rows.micro_batch(plan, learner.scorer.device)
        output = loss(batch, learner.scorer.scores(batch), plan.units)
        torch.autograd.backward(output.loss)
        learner.weights.collect_gradients()
        outputs.append(LossOutput(output.loss.detach(), output.sums, output.maxima))
        progress((index + 1) / len(plans))
    whole = combine(outputs)
    named = {"loss": whole.loss, **whole.sums, **whole.maxima}
    return {name: float(value) for name, value in named.items()}


def _within_memory(learner: Learner, settings: LoopSettings, work: Callable[[int], Outcome]) -> Outcome:
    """Work that can be done again with smaller micro-batches; gradients that a failed attempt left are forgotten."""
    return learner.budget.attempt(
        work,
        learner.weights.clear_gradients,
        settings.max_tokens_per_microbatch,
        learner.model,
        checkpointing=settings.activation_checkpointing,
    )


def _tokens(learner: Learner, settings: LoopSettings) -> int:
    return learner.budget.tokens(
        settings.max_tokens_per_microbatch, learner.model, checkpointing=settings.activation_checkpointing
    )


def mean_metrics(curve: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Means over optimiser steps; of a metric whose name ends in `_max` the largest, of `tokens` and `pairs` the sum."""
    if not curve:
        return {}
    columns = {name: [step[name] for step in curve] for name in curve[0]}
    return {name: _summary(name)(values) for name, values in columns.items()}


def _summary(name: str) -> Callable[[list[float]], float]:
    if name.endswith(("_max", "_max_abs")):
        return max
    return sum if name in ("tokens", "pairs") else lambda values: sum(values) / len(values)


@contextmanager
def _checkpointing(model: Any, enabled: bool) -> Iterator[None]:
    """Recompute each layer's activations in the backward pass. Only the layers themselves count as training: no dropout."""
    if not enabled:
        yield
        return
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise BackendError(f"{type(model).__name__} can't checkpoint activations: set activation_checkpointing: false")
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        model.gradient_checkpointing_disable()
        model.eval()
