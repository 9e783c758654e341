"""Trainer adapters that each break one promise of the shipped one; `test_conformance_adapters` must find it."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic import ConfigDict

from nat_finetune.config.component import TrainerAdapterConfig
from nat_finetune.local.jobs import LocalTrainerAdapter
from nat_finetune.local.settings import LoopSettings, OptimiserSettings, UpdateSettings
from nat_finetune.registry import register_trainer_adapter
from nat_finetune.testing.items import pair
from nat_finetune.types import JobState, PreferencePair, TrainingJobStatus


class BrokenConfig(TrainerAdapterConfig, name="broken_adapter"):
    """DPO in this process, with one method of another sort."""

    needs_local_model: ClassVar[bool] = True

    fault: str = "none"

    def takes(self):
        return frozenset({"episode"} if self.fault == "takes_episodes" else {"pair"})


class LooseConfig(BrokenConfig, name="loose_adapter"):
    """Takes any key."""

    model_config = ConfigDict(extra="allow")


class Faulty:
    """The shipped adapter, all methods handed on; faults replace one."""

    def __init__(self, inner, policy):
        self.inner, self.policy = inner, policy

    def __getattr__(self, name):
        return getattr(self.inner, name)


class TakesAnything(Faulty):
    async def prepare(self, collection, reference):
        pairs = tuple(item for item in collection.items if isinstance(item, PreferencePair))
        return await self.inner.prepare(replace(collection, items=pairs or (pair("a", "b"),)), reference)


class OneKey(Faulty):
    async def prepare(self, collection, reference):
        spec = await self.inner.prepare(collection, reference)
        self.inner._jobs["key"] = self.inner._jobs[spec.key]
        return replace(spec, key="key")


class LosesItems(Faulty):
    async def prepare(self, collection, reference):
        return await self.inner.prepare(replace(collection, items=collection.items[:1]), reference)


class StartsAgain(Faulty):
    count = 0

    async def submit(self, spec):
        self.count += 1
        return replace(await self.inner.submit(spec), job_id=f"job {self.count}")


class ReturnsEarly(Faulty):
    async def wait(self, ref):
        await self.inner.wait(ref)
        return TrainingJobStatus(JobState.RUNNING, 0.5)


class OldPolicy(Faulty):
    async def result(self, ref):
        result = await self.inner.result(ref)
        return replace(result, policy=replace(result.policy, digest="another"))


class CannotStop(Faulty):
    async def cancel(self, ref):
        pass


class ForgetsMoments(Faulty):
    """Its checkpoint has weights, and no state of the optimiser."""

    def load_state(self, folder):
        self.inner.load_state(folder)
        self.inner._learner.optimiser.load({}, steps=0)


class KeyErrors(Faulty):
    async def status(self, ref):
        if ref.key not in self.inner._jobs:
            raise KeyError(ref.key)
        return await self.inner.status(ref)


BROKEN = {
    "takes what it declares": [TakesAnything],
    "prepares under a key of its own": [OneKey, LosesItems],
    "starts a job once": [StartsAgain, ReturnsEarly],
    "changes the policy that samples": [OldPolicy],
    "cancels": [CannotStop],
    "goes on from its checkpoint": [ForgetsMoments],
    "names jobs that it does not know": [KeyErrors],
}
"""Promise -> the adapter that breaks it."""
FAULTS = {fault.__name__: fault for faults in (*BROKEN.values(), [Faulty]) for fault in faults}


async def _make(config, builder):
    from nat_finetune.local.settings import PreferenceSettings

    policy = await builder.get_policy()
    settings = UpdateSettings(PreferenceSettings(), OptimiserSettings(1e-3), LoopSettings(epochs=3), lora=None)
    inner = LocalTrainerAdapter(settings, policy, target=builder.target, name="tested", seed=0)
    return FAULTS.get(config.fault, Faulty)(inner, policy)


@register_trainer_adapter(config_type=BrokenConfig)
async def broken_adapter(config, builder):
    adapter = await _make(config, builder)
    yield adapter
    await adapter.inner.close()


@register_trainer_adapter(config_type=LooseConfig)
async def loose_adapter(config, builder):
    adapter = await _make(config, builder)
    yield adapter
    await adapter.inner.close()
