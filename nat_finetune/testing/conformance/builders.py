"""What every trajectory builder promises: pure, lazy, true to what was sampled, and nothing lost without a word."""

from __future__ import annotations

import asyncio
from collections.abc import Collection as Container
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from nat_finetune.config.component import TrajectoryBuilderConfig
from nat_finetune.data.trajectories import is_target
from nat_finetune.testing.conformance.knobs import refuses_unknown_keys, variations
from nat_finetune.testing.conformance.purity import watched
from nat_finetune.testing.conformance.report import Check, examine
from nat_finetune.testing.conformance.samples import sample_records, sample_rollouts
from nat_finetune.testing.parts import TARGET, FakeBuilder, made
from nat_finetune.types import (
    CandidateScored,
    Cause,
    Demonstration,
    Dropped,
    Group,
    Item,
    ModelCall,
    PreferencePair,
    Record,
    Rollout,
    Target,
)

_KINDS: dict[str, type] = {"group": Group, "pair": PreferencePair, "demonstration": Demonstration}
Given = Rollout | Record


@dataclass(frozen=True, slots=True)
class BuilderCase:
    """A builder's config, and what it is asked to build from."""

    config: TrajectoryBuilderConfig
    given: tuple[Given, ...]
    target: Target
    idle: Container[str] = ()
    """Keys that need not change what is made."""

    @property
    def rollouts(self) -> list[Rollout]:
        """What was given, where that is rollouts."""
        return [one for one in self.given if isinstance(one, Rollout)]

    def build(self, config: TrajectoryBuilderConfig | None = None, given: Iterable[Any] | None = None) -> list[Item | Dropped]:
        """Everything that a fresh builder makes."""

        async def once() -> list[Item | Dropped]:
            async with made(config or self.config, FakeBuilder(target=self.target)) as builder:
                return list(builder.build(iter(deepcopy(self.given)) if given is None else given))

        return asyncio.run(once())

    def items(self) -> list[Item]:
        """The trainable part of it."""
        return [one for one in self.build() if not isinstance(one, Dropped)]


def check_builder(
    config: TrajectoryBuilderConfig,
    *,
    given: Sequence[Given] | None = None,
    target: Target = TARGET,
    without_effect: Container[str] = (),
) -> list[str]:
    """Hold a trajectory builder to its interface; call it where no event loop runs.

    `given` takes the place of the sample rollouts (or records, where the config names a dataset of them). `without_effect`
    names keys of the config that no item shows; every other key with a simple type is changed, and must change something.

    Returns:
        The promises that were looked at.

    Raises:
        ConformanceError: some are broken; names each.
    """
    if given is None and config.record_dataset() is not None:
        given = list(sample_records())
    elif given is None:
        step = config.candidate_step()
        given = sample_rollouts(target, generations=config.generations, candidate_step=step)
    case = BuilderCase(config, tuple(given), target, without_effect)
    return examine(f"trajectory builder {config.component_name!r}", case, CHECKS)


def _makes(case: BuilderCase) -> Iterator[str]:
    items, kind = case.items(), case.config.makes
    wrong = sorted({type(item).__name__ for item in items if not isinstance(item, _KINDS[kind])})
    if wrong:
        yield f"its config says `makes = {kind!r}`, found {', '.join(wrong)}"
    if not items:
        yield f"it made nothing of {len(case.given)} that were given: pass given= with what it can use"


def _generations(case: BuilderCase) -> Iterator[str]:
    if case.config.record_dataset() is not None:
        return

    async def asked() -> int:
        async with made(case.config, FakeBuilder(target=case.target)) as builder:
            return int(builder.generations)

    found = asyncio.run(asked())
    if found != case.config.generations:
        yield f"the config asks for {case.config.generations} rollouts of an example, the builder for {found}"


def _accounted(case: BuilderCase) -> Iterator[str]:
    built = case.build()
    whole_examples = {repr(one.example_id) for one in built if isinstance(one, Dropped) and one.what == "group"}
    named = {name for one in built for name in _sources(one)}
    step = case.config.candidate_step()
    for one in case.given:
        if isinstance(one, Record):
            known, what = one.place in named, f"record {one.place}"
        else:
            known = one.rollout_id in named or repr(one.example_id) in whole_examples or not _is_read(one, step)
            what = f"rollout {one.rollout_id}"
        if not known:
            yield f"{what} is in no item, and no Dropped names it: yield Dropped(what, reason, ...) with its id"


def _is_read(rollout: Rollout, step: str | None) -> bool:
    """Whether there is something in a rollout that a builder of candidates reads; others read every rollout."""
    return step is None or any(isinstance(event, CandidateScored) and event.step_name == step for event in rollout.events)


def _sources(one: Item | Dropped) -> list[str]:
    """Ids of rollouts and places of records that an item or a drop is about."""
    if isinstance(one, Group):
        return [member.rollout_id for member in one.trajectories]
    if isinstance(one, Dropped):
        return [name for name in (one.rollout_id, one.record) if name is not None]
    where = one.provenance
    return [name for name in (where.rollout_id, where.record, *where.further_records) if name is not None]


def _invented(case: BuilderCase) -> Iterator[str]:
    known = {one.place if isinstance(one, Record) else one.rollout_id for one in case.given}
    for name in sorted({name for one in case.build() for name in _sources(one)} - known):
        yield f"something is said to come from {name!r}, which was not given"


def _sampled(case: BuilderCase) -> Iterator[str]:
    calls = {(rollout.rollout_id, call.seq): call for rollout in case.rollouts for call in rollout.model_calls}
    for group in case.items():
        for member in group.trajectories if isinstance(group, Group) else ():
            for segment in member.segments:
                for turn in segment.turns:
                    call = calls.get((member.rollout_id, turn.call_seq))
                    yield from _turn_problems(member.rollout_id, turn.call_seq, call, case.target, segment, turn)


def _turn_problems(rollout_id: str, seq: int, call: ModelCall | None, target: Target, segment: Any, turn: Any) -> Iterator[str]:
    where = f"call {seq} of rollout {rollout_id}"
    if call is None:
        yield f"{where} is trained and was never made"
    elif not is_target(call, target):
        yield f"{where} is trained: it is outside of target_functions or of another model than target_model"
    elif segment.token_ids[turn.start : turn.end] != call.completion_ids:
        yield f"{where} is trained on other tokens than those that were sampled"
    elif segment.logprobs[turn.start : turn.end] != call.logprobs:
        yield f"{where} is trained with other logprobs than the sampler's"


def _unknown(case: BuilderCase) -> Iterator[str]:
    paid = {rollout.rollout_id: rollout for rollout in case.rollouts}
    for group in case.items():
        for member in group.trajectories if isinstance(group, Group) else ():
            given = paid[member.rollout_id].rewards if member.rollout_id in paid else {}
            for name, value in member.rewards.items():
                if value is not None and name in given and given[name] is None:
                    yield f"rollout {member.rollout_id}: the reward {name!r} is unknown (None) and became {value}"


def _breakdowns(case: BuilderCase) -> Iterator[str]:
    broken = {
        rollout.rollout_id
        for rollout in case.rollouts
        if rollout.failure is not None and rollout.failure.cause is Cause.INFRASTRUCTURE
    }
    for name in sorted(broken & {name for item in case.items() for name in _sources(item)}):
        yield f"rollout {name} failed through the infrastructure and is trained on: its events say nothing of the policy"


def _repeatable(case: BuilderCase) -> Iterator[str]:
    if case.build() != case.build():
        yield "two fresh builders make different things of the same: draw nothing, keep no order of sets"


def _unchanged(case: BuilderCase) -> Iterator[str]:
    given = deepcopy(case.given)
    case.build(given=iter(given))
    if given != case.given:
        yield "it changed what it was given"


def _pure(case: BuilderCase) -> Iterator[str]:
    async def once() -> list[str]:
        async with made(case.config, FakeBuilder(target=case.target)) as builder:
            list(builder.build(iter(deepcopy(case.given))))  # what is imported late is imported now
            with watched() as effects:
                list(builder.build(iter(deepcopy(case.given))))
            return effects

    yield from asyncio.run(once())


def _lazy(case: BuilderCase) -> Iterator[str]:
    taken: list[Given] = []

    def stream() -> Iterator[Given]:
        for one in deepcopy(case.given):
            taken.append(one)
            yield one

    async def once() -> tuple[Any, int]:
        async with made(case.config, FakeBuilder(target=case.target)) as builder:
            result = builder.build(stream())
            before = len(taken)
            if isinstance(result, Iterator):
                list(result)
            return result, before

    result, before = asyncio.run(once())
    if not isinstance(result, Iterator):
        yield f"build returned a {type(result).__name__}: make it a generator, `yield` each item"
    elif before:
        yield f"build read {before} of what it was given before anything was asked of it: make it a generator"


def _knobs(case: BuilderCase) -> Iterator[str]:
    yield from refuses_unknown_keys(case.config)
    usual = _effect(case, case.config)
    tried: dict[str, bool] = {}
    for key, other in variations(case.config):
        if key not in case.idle and not tried.get(key):
            tried[key] = _effect(case, other) != usual
    for key in (key for key, matters in tried.items() if not matters):
        yield f"{key} is ignored: with other values the same is made; honour it, refuse it, or name it in without_effect"


def _effect(case: BuilderCase, config: TrajectoryBuilderConfig) -> Any:
    """Everything by which a key may show."""
    asked = (config.makes, config.generations, config.candidate_step())
    return asked if asked[2] != case.config.candidate_step() else (asked, case.build(config))


CHECKS: dict[str, Check[BuilderCase]] = {
    "makes what it declares": _makes,
    "asks for as many rollouts as its config": _generations,
    "accounts for everything that it was given": _accounted,
    "invents nothing": _invented,
    "trains on sampled tokens of the target": _sampled,
    "keeps unknown rewards unknown": _unknown,
    "leaves out what the infrastructure broke": _breakdowns,
    "makes the same of the same": _repeatable,
    "changes nothing that it was given": _unchanged,
    "does no IO and draws nothing": _pure,
    "is a stream": _lazy,
    "ignores no key": _knobs,
}
