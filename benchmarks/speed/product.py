"""The product's side: `python product.py JOB.json`, through what its command line goes through, config included."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import conversation
from product_config import write_config
from protocol import Job, Side, Spent
from workload import BATCH

from nat_finetune.compose import Composition, compose
from nat_finetune.config.load import load_config
from nat_finetune.config.schema import RunConfig
from nat_finetune.finetune import rollout_source
from nat_finetune.registry import Registry
from nat_finetune.rollout_service import requests_for
from nat_finetune.types import Collection, Dropped, Item, ModelCall, Rollout, UpdateResult


@dataclass(slots=True)
class Product:
    """The live components of a job."""

    job: Job
    config: RunConfig
    parts: Composition
    units: int = 0

    async def dpo(self) -> dict[str, Any]:
        """One update over as many pairs as a unit has steps; all of its checks included."""
        records = await self.parts.get_records()
        pairs = [item for item in records.build() if not isinstance(item, Dropped)]
        wanted = self.job.steps * BATCH
        start = self.units * wanted % len(pairs)
        with Spent() as step:
            result = await self.update((pairs + pairs)[start : start + wanted])
        return _described(step, None, step, result, self.job.steps)

    async def grpo(self) -> dict[str, Any]:
        """Rollouts of all examples, and one update, as often as a unit has steps."""
        units = [await self._on_policy() for _ in range(self.job.steps)]
        return units[0] if len(units) == 1 else {name: _mean([unit[name] for unit in units]) for name in units[0]}

    async def load(self) -> dict[str, Any]:
        """All conversations at once, to their end."""
        with Spent() as step:
            rollouts = await self.rollouts()
        return {"step": step.over(1), "generation": step.over(1), **_sampled(rollouts)}

    async def _on_policy(self) -> dict[str, Any]:
        source = await rollout_source(self.config, self.parts)
        with Spent() as step:
            with Spent() as generation:
                rollouts = await self.rollouts()
            with Spent() as update:
                items = [made for made in source.builder.build(rollouts) if not isinstance(made, Dropped)]
                result = await self.update(items)
        return _described(step, generation, update, result, 1) | _sampled(rollouts)

    async def rollouts(self) -> list[Rollout]:
        """Those of a step."""
        source = await rollout_source(self.config, self.parts)
        examples = await self.parts.load_examples(self.config.eval.general.dataset, "eval.general.dataset")
        generations = 1 if self.job.work == "load" else source.builder.generations
        self.units += 1
        requests = requests_for(self.units, examples, generations, self.config.finetuning.seed)
        version = None if self.job.work == "load" else (await self.parts.get_policy()).version
        done = await source.service.run(requests, policy_version=version, trained_rewards=["cheap"])
        failed = [rollout.failure for rollout in done if rollout.failure is not None]
        if failed:
            raise SystemExit(f"a rollout failed: {failed[0].message}")
        return done

    async def update(self, items: list[Item]) -> UpdateResult:
        """Prepare, submit, wait: as a run does it."""
        adapter = await self.parts.get_trainer_adapter()
        self.units += self.job.work == "dpo"
        spec = await adapter.prepare(Collection(tuple(items), "benchmark", self.units, "policy"), None)
        ref = await adapter.submit(spec)
        await adapter.wait(ref)
        return await adapter.result(ref)


def _described(step: Spent, generation: Spent | None, update: Spent, result: UpdateResult, steps: int) -> dict[str, Any]:
    if result.optimiser_steps != steps:
        raise SystemExit(f"{result.optimiser_steps} optimiser steps, expected {steps}")
    parts = {"step": step.over(steps), "update": update.over(steps), "optimising": {"wall": result.seconds / steps}}
    if generation is not None:
        parts["generation"] = generation.over(steps)
    return {**parts, "trained": result.tokens_trained / steps, "losses": [point["loss"] for point in result.curve]}


def _sampled(rollouts: list[Rollout]) -> dict[str, int]:
    calls = [event for rollout in rollouts for event in rollout.events if isinstance(event, ModelCall)]
    return {
        "sampled": sum(len(call.completion_ids or ()) for call in calls),
        "prompted": sum(len(call.prompt_ids or ()) for call in calls),
    }


def _mean(values: list[Any]) -> Any:
    if isinstance(values[0], dict):
        return {name: _mean([value[name] for value in values]) for name in values[0]}
    if isinstance(values[0], list):
        return [entry for value in values for entry in value]
    return sum(values) / len(values)


async def composed(job: Job, folder: Path, body: Callable[[Product], Awaitable[None]], overrides: Sequence[str] = ()) -> None:
    """Run `body` with the job's components; `overrides` are those of `-o`."""
    registry = Registry.installed()
    registry.add_module(conversation, origin="benchmark")
    config = load_config(write_config(job, folder), list(overrides), registry=registry).config
    async with compose(config, registry) as parts:
        await parts.get_llm("policy")
        if job.work != "load":
            await parts.get_trainer_adapter()
        await body(Product(job, config, parts))


async def serve(job: Job) -> None:
    """Do units until there are no more."""
    import torch

    torch.set_num_threads(job.threads)
    side = Side()

    async def units(product: Product) -> None:
        unit = {"dpo": product.dpo, "grpo": product.grpo, "agent": product.grpo, "load": product.load}[job.work]
        side.ready(versions={name: version(name) for name in ("nat-finetune", "torch", "transformers")})
        while side.told():
            side.done(await unit())

    with tempfile.TemporaryDirectory() as folder:
        await composed(job, Path(folder), units)


if __name__ == "__main__":
    asyncio.run(serve(Job.read(sys.argv[1])))
