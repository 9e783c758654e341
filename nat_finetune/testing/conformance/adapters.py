"""What every trainer adapter promises: a job is started once, can be watched and cancelled, and a checkpoint is all of it."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

from nat_finetune.config.component import ItemKind, TrainerAdapterConfig
from nat_finetune.errors import BackendError, NatFinetuneError
from nat_finetune.interfaces import TrainerAdapter
from nat_finetune.testing.conformance.knobs import refuses_unknown_keys
from nat_finetune.testing.conformance.report import Check, examine
from nat_finetune.testing.items import collection, demonstration, pair, sampled_group
from nat_finetune.testing.parts import FakeBuilder, made
from nat_finetune.types import Collection, Group, Item, JobState, TrainingJobRef, UpdateResult

ENDED = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)
KINDS: tuple[ItemKind, ...] = get_args(ItemKind)


@dataclass(frozen=True, slots=True)
class AdapterCase:
    """An adapter's config, and a folder for what it writes."""

    config: TrainerAdapterConfig
    folder: Path

    @property
    def kind(self) -> ItemKind:
        """A kind of items that it takes."""
        return min(self.config.takes())

    def with_adapter(self, use: Callable[[TrainerAdapter, Bench], Awaitable[Any]]) -> Any:
        """What `use` returns of a fresh adapter on a fresh policy."""

        async def once() -> Any:
            async with _bench(self) as (adapter, bench):
                return await use(adapter, bench)

        return asyncio.run(once())


@dataclass(frozen=True, slots=True)
class Bench:
    """What a fresh adapter trains, and items for it."""

    policy: Any
    """A `local.policy.LocalPolicy`; its version and digest say whether anything was trained."""

    async def collection(self, kind: ItemKind, *, step: int = 0, size: int = 4) -> Collection:
        """Items of a kind, `size` rollouts, pairs or demonstrations."""
        items: dict[str, Callable[[], Awaitable[list[Item]]]] = {
            "group": lambda: self._groups(step, size),
            "pair": lambda: _of([pair("0 1", f"{n % 10}", text=f"move {step} {n}", example=n) for n in range(size)]),
            "demonstration": lambda: _of([demonstration(f"{n % 10}", text=f"move {step} {n}") for n in range(size)]),
        }
        return collection(*await items[kind](), step=step)

    async def _groups(self, step: int, size: int) -> list[Item]:
        rewards = [n / 3 for n in range(4)]
        return [await sampled_group(self.policy, rewards, example=100 * step + n) for n in range(-(-size // 4))]


async def _of(items: list[Item]) -> list[Item]:
    return items


@asynccontextmanager
async def _bench(case: AdapterCase) -> AsyncIterator[tuple[TrainerAdapter, Bench]]:
    from nat_finetune.local.byte_policy import write_byte_policy
    from nat_finetune.local.model import load_model
    from nat_finetune.local.policy import LocalPolicy

    source = case.folder / "policy"
    if not source.exists():
        write_byte_policy(source)
    policy = LocalPolicy("policy", load_model(str(source)), deterministic=True)
    try:
        builder = FakeBuilder(policy=policy, entry_name="tested")
        async with made(case.config, builder) as adapter:
            yield adapter, Bench(policy)
    finally:
        policy.close()


def check_adapter(config: TrainerAdapterConfig) -> list[str]:
    """Hold a trainer adapter to its interface; call it where no event loop runs.

    It trains a small random policy of bytes, which `Builder.get_policy` gives. An adapter of another backend is given the
    same items; it needs a stand-in of its backend that answers.

    Returns:
        The promises that were looked at.

    Raises:
        ConformanceError: some are broken; names each.
    """
    with tempfile.TemporaryDirectory() as folder:
        return examine(f"trainer adapter {config.component_name!r}", AdapterCase(config, Path(folder)), CHECKS)


async def _train(adapter: TrainerAdapter, items: Collection) -> UpdateResult:
    ref = await adapter.submit(await adapter.prepare(items, None))
    await adapter.wait(ref)
    return await adapter.result(ref)


def _takes(case: AdapterCase) -> Iterator[str]:
    takes = case.config.takes()
    if not takes or takes - set(KINDS):
        yield f"takes() must give some of {', '.join(KINDS)}, found {sorted(takes)}"
    for kind in sorted(set(KINDS) - takes):

        async def refused(adapter: TrainerAdapter, bench: Bench, kind: ItemKind = kind) -> str | None:
            try:
                await _train(adapter, await bench.collection(kind))
            except NatFinetuneError:
                return None
            return f"it does not take {kind}s, was given some, and trained: refuse them in prepare"

        problem = case.with_adapter(refused)
        if problem is not None:
            yield problem


def _prepared(case: AdapterCase) -> Iterator[str]:
    async def look(adapter: TrainerAdapter, bench: Bench) -> list[str]:
        await adapter.health()
        given = await bench.collection(case.kind)
        spec, again = await adapter.prepare(given, None), await adapter.prepare(given, None)
        later = await adapter.prepare(replace(given, step=1), None)
        other = await adapter.prepare(await bench.collection(case.kind, size=8), None)
        problems = []
        if spec.key != again.key:
            problems.append("the same collection has two keys: a crash would submit it twice")
        if spec.key == later.key:
            problems.append("two steps have the same key: the second would be taken for done")
        if spec.key == other.key:
            problems.append("two collections have the same key: hash what is trained on")
        if (spec.run_id, spec.step) != (given.run_id, given.step):
            problems.append(
                f"the spec is of run and step {(spec.run_id, spec.step)}, the collection of {(given.run_id, given.step)}"
            )
        try:
            json.dumps(asdict(spec))
        except TypeError as error:
            problems.append(f"the spec can't be written down: {error}")
        members = sum(len(item.trajectories) if isinstance(item, Group) else 1 for item in given.items)
        if spec.items + len(spec.dropped) not in (members, len(given.items)):
            problems.append(
                f"of {members} rollouts or pairs in {len(given.items)} items it takes {spec.items} and names "
                f"{len(spec.dropped)} as dropped: the rest is lost; name it in JobSpec.dropped"
            )
        return problems

    yield from case.with_adapter(look)


def _once(case: AdapterCase) -> Iterator[str]:
    async def look(adapter: TrainerAdapter, bench: Bench) -> list[str]:
        spec = await adapter.prepare(await bench.collection(case.kind), None)
        first, second = await adapter.submit(spec), await adapter.submit(spec)
        await adapter.wait(first)
        third = await adapter.submit(spec)
        status, result = await adapter.wait(second), await adapter.result(third)
        problems = []
        if not first == second == third:
            problems.append("the same spec has several jobs")
        if status.state is not JobState.COMPLETED:
            problems.append(f"wait returned while the job is {status.state.value}: {status.message}")
        if result.policy.version != 1:
            problems.append(f"one update makes version 1 of the policy, found version {result.policy.version}")
        if 0 in (result.tokens_trained, result.optimiser_steps):
            problems.append(f"trained {result.tokens_trained} tokens in {result.optimiser_steps} steps: nothing was trained")
        if not isinstance(await adapter.logs(first), list):
            problems.append("logs must be a list of lines")
        return problems

    yield from case.with_adapter(look)


def _changes(case: AdapterCase) -> Iterator[str]:
    async def look(adapter: TrainerAdapter, bench: Bench) -> list[str]:
        before = bench.policy.digest
        result = await _train(adapter, await bench.collection(case.kind))
        if not case.config.needs_local_model:
            return []
        if bench.policy.ref() != result.policy:
            return [f"result names {result.policy}, what samples now is {bench.policy.ref()}: call policy.updated(digest)"]
        return [] if bench.policy.digest != before else ["the weights have the digest that they had before the update"]

    yield from case.with_adapter(look)


def _cancels(case: AdapterCase) -> Iterator[str]:
    async def look(adapter: TrainerAdapter, bench: Bench) -> list[str]:
        adapter.save_state(case.folder / "before-cancel")
        spec = await adapter.prepare(await bench.collection(case.kind, size=64), None)
        ref = await adapter.submit(spec)
        await adapter.cancel(ref)
        status = await adapter.status(ref)
        if status.state not in ENDED:
            return [f"after cancel the job is {status.state.value}: cancel waits until it has stopped"]
        if status.state is not JobState.COMPLETED:
            try:
                await adapter.result(ref)
            except NatFinetuneError:
                pass
            else:
                return ["a cancelled job has a result: raise BackendError"]
            if bench.policy.version != 0:
                return [f"a cancelled update made version {bench.policy.version} of the policy"]
        adapter.load_state(case.folder / "before-cancel")
        result = await _train(adapter, await bench.collection(case.kind, step=1))
        return [] if result.tokens_trained != 0 else ["after a cancelled update and load_state it trains nothing"]

    yield from case.with_adapter(look)


def _resumes(case: AdapterCase) -> Iterator[str]:
    async def whole(adapter: TrainerAdapter, bench: Bench) -> UpdateResult:
        await _train(adapter, await bench.collection(case.kind))
        adapter.save_state(case.folder / "checkpoint")
        return await _train(adapter, await bench.collection(case.kind, step=1))

    async def resumed(adapter: TrainerAdapter, bench: Bench) -> UpdateResult:
        adapter.load_state(case.folder / "checkpoint")
        return await _train(adapter, await bench.collection(case.kind, step=1))

    want, found = case.with_adapter(whole), case.with_adapter(resumed)
    if found.policy.version != want.policy.version:
        yield f"resumed, the second update makes version {found.policy.version}, without a stop {want.policy.version}"
    elif found.policy.digest != want.policy.digest:
        yield "resumed, the second update ends with other weights than without a stop: save_state leaves something out"


def _strangers(case: AdapterCase) -> Iterator[str]:
    async def look(adapter: TrainerAdapter, bench: Bench) -> list[str]:
        stranger = TrainingJobRef("no-such-job", "no-such-key", "tested")
        try:
            await adapter.status(stranger)
        except BackendError:
            return []
        except LookupError as error:
            return [f"the status of an unknown job raises {type(error).__name__}: raise BackendError, with what to do"]
        return []

    yield from case.with_adapter(look)


def _knobs(case: AdapterCase) -> Iterator[str]:
    yield from refuses_unknown_keys(case.config)


CHECKS: dict[str, Check[AdapterCase]] = {
    "takes what it declares": _takes,
    "prepares under a key of its own": _prepared,
    "starts a job once": _once,
    "changes the policy that samples": _changes,
    "cancels": _cancels,
    "goes on from its checkpoint": _resumes,
    "names jobs that it does not know": _strangers,
    "takes no unknown key": _knobs,
}
