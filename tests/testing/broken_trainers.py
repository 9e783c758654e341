"""Trainers that each break one promise; `test_conformance_trainers` must find it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from nat_finetune.config.component import TrainerConfig
from nat_finetune.errors import BackendError
from nat_finetune.registry import register_trainer


async def right(run, config):
    async for step in run.steps():
        await _train(run, step, await run.collect(step))
        await run.validate_if_due(step)


async def _train(run, step, rollouts):
    await run.update(await run.select(run.build(rollouts, step=step.index)), step)


async def never_updates(run, config):
    async for step in run.steps():
        run.build(await run.collect(step), step=step.index)


async def twice(run, config):
    async for step in run.steps():
        rollouts = await run.collect(step)
        await _train(run, step, rollouts)
        await _train(run, step, rollouts)
        await run.validate_if_due(step)


async def first_half(run, config):
    """Builds from half of what it collected."""
    async for step in run.steps():
        rollouts = await run.collect(step)
        await _train(run, step, rollouts[: len(rollouts) // 2])
        await run.validate_if_due(step)


async def never_validates(run, config):
    async for step in run.steps():
        await _train(run, step, await run.collect(step))


async def remembers(run, config):
    """Trains on what the step before collected too: gone after a kill."""
    before = []
    async for step in run.steps():
        rollouts = await run.collect(step)
        await _train(run, step, [*before, *rollouts])
        await run.validate_if_due(step)
        before = rollouts


async def swallows(run, config):
    async for step in run.steps():
        try:
            await _train(run, step, await run.collect(step))
        except BackendError:
            continue
        await run.validate_if_due(step)


async def swallows_cancellation(run, config):
    async for step in run.steps():
        try:
            await _train(run, step, await run.collect(step))
        except asyncio.CancelledError:
            return
        await run.validate_if_due(step)


async def in_rounds(run, config):
    """Takes rounds: `examples_per_step` means nothing to it."""
    async for made in run.rounds(1, passes=1):
        chosen = await run.select(run.build(await run.collect(made.passes[0]), step=made.passes[0].index))
        async for step in run.pending(made.updates):
            await run.update(chosen, step)
            await run.validate_if_due(step)


BROKEN = {
    "trains each step once, in order": [never_updates, twice],
    "trains on what it collected": [first_half],
    "validates where it is due": [never_validates],
    "goes on where it was killed": [remembers],
    "lets errors and cancellation end the run": [swallows, swallows_cancellation],
    "ignores no key": [in_rounds],
}
"""Promise -> what `train` does that breaks it."""
ORDERS = {order.__name__: order for orders in (*BROKEN.values(), [right]) for order in orders}


class BrokenConfig(TrainerConfig, name="broken_trainer"):
    """Trains as `order` says."""

    fits = frozenset({"group", "pair"})
    order: str = "right"


class IgnoringConfig(BrokenConfig, name="ignoring_trainer"):
    """Has a key that changes nothing."""

    num_runs: int = 1


class UnfitConfig(BrokenConfig, name="unfit_trainer"):
    """Fits what does not exist."""

    fits = frozenset({"group", "episode"})


class MistakenConfig(BrokenConfig, name="mistaken_trainer"):
    """Names a key that `finetuning` does not have."""

    unhonoured = frozenset({"num_epoch"})


def _make(config):
    return SimpleNamespace(train=lambda run: ORDERS[config.order](run, config))


@register_trainer(config_type=BrokenConfig)
async def broken_trainer(config, builder):
    yield _make(config)


@register_trainer(config_type=IgnoringConfig)
async def ignoring_trainer(config, builder):
    yield _make(config)


@register_trainer(config_type=UnfitConfig)
async def unfit_trainer(config, builder):
    yield _make(config)


@register_trainer(config_type=MistakenConfig)
async def mistaken_trainer(config, builder):
    yield _make(config)
