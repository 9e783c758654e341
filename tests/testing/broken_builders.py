"""Trajectory builders that each break one promise; `test_conformance_builders` must find it."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from pydantic import ConfigDict, Field

from nat_finetune.config.component import TrajectoryBuilderConfig
from nat_finetune.data.groups import build_groups
from nat_finetune.data.trajectories import Credit
from nat_finetune.registry import register_trajectory_builder
from nat_finetune.types import Dropped, Group


def _groups(rollouts, target):
    return build_groups(rollouts, target, Credit())


def wrong_kind(rollouts, target, config):
    for made in _groups(rollouts, target):
        yield next(iter(made.trajectories)) if isinstance(made, Group) else made


def nothing(rollouts, target, config):
    for rollout in rollouts:
        yield Dropped("rollout", "tie", "", rollout.example_id, rollout.rollout_id)


def loses_drops(rollouts, target, config):
    yield from (made for made in _groups(rollouts, target) if isinstance(made, Group))


def invents(rollouts, target, config):
    yield from _groups(rollouts, target)
    yield Dropped("rollout", "tie", "", "mixed", "a-rollout-of-nobody")


def other_tokens(rollouts, target, config):
    """Encodes text again in place of the sampled ids."""
    yield from _groups(
        (_with_calls(r, completion_ids=lambda c: tuple(t + 1 for t in c.completion_ids)) for r in rollouts), target
    )


def other_logprobs(rollouts, target, config):
    yield from _groups((_with_calls(r, logprobs=lambda c: (0.0,) * len(c.logprobs)) for r in rollouts), target)


def outside_target(rollouts, target, config):
    yield from _groups((_with_calls(r, path=lambda c: (target.functions[0],)) for r in rollouts), target)


def _with_calls(rollout, **changes):
    """The rollout with every model call of the trained model changed."""
    (field, change), *_ = changes.items()
    events = tuple(
        replace(e, **{field: change(e)}) if e.kind == "model_call" and e.completion_ids else e for e in rollout.events
    )
    return replace(rollout, events=events)


def unknown_is_zero(rollouts, target, config):
    known = (replace(r, rewards={name: value or 0.0 for name, value in r.rewards.items()}) for r in rollouts)
    yield from _groups(known, target)


def trains_breakdowns(rollouts, target, config):
    yield from _groups((replace(r, failure=None, rewards={"outcome": r.generation % 2}) for r in rollouts), target)


def random_order(rollouts, target, config):
    made = list(_groups(rollouts, target))
    random.SystemRandom().shuffle(made)
    yield from made


def draws(rollouts, target, config):
    random.random()
    yield from _groups(rollouts, target)


def reads(rollouts, target, config):
    Path(__file__).read_text(encoding="utf-8")
    yield from _groups(rollouts, target)


def changes_input(rollouts, target, config):
    for rollout in (given := list(rollouts)):
        rollout.rewards["seen"] = 1.0
    yield from _groups([replace(r, rewards={"outcome": r.rewards["outcome"]}) for r in given], target)


def eager(rollouts, target, config):
    return iter(list(_groups(rollouts, target)))


def a_list(rollouts, target, config):
    return list(_groups(rollouts, target))


def right(rollouts, target, config):
    yield from _groups(rollouts, target)


BROKEN = {
    "makes what it declares": [wrong_kind, nothing],
    "accounts for everything that it was given": [loses_drops],
    "invents nothing": [invents],
    "trains on sampled tokens of the target": [other_tokens, other_logprobs, outside_target],
    "keeps unknown rewards unknown": [unknown_is_zero],
    "leaves out what the infrastructure broke": [trains_breakdowns],
    "makes the same of the same": [random_order],
    "changes nothing that it was given": [changes_input],
    "does no IO and draws nothing": [draws, reads],
    "is a stream": [eager, a_list],
}
"""Promise -> what `build` does that breaks it."""
BUILDS = {build.__name__: build for builds in (*BROKEN.values(), [right]) for build in builds}


class BrokenConfig(TrajectoryBuilderConfig, name="broken_builder"):
    """Builds as `build` says."""

    makes = "group"

    build: str = "right"

    @property
    def generations(self):
        return 2


class IgnoringConfig(BrokenConfig, name="ignoring_builder"):
    """Has a key that changes nothing."""

    min_spread: float = Field(0.0, ge=0)


class LooseConfig(BrokenConfig, name="loose_builder"):
    """Takes any key."""

    model_config = ConfigDict(extra="allow")


class CountingConfig(BrokenConfig, name="counting_builder"):
    """Asks for other rollouts than its builder."""

    @property
    def generations(self):
        return 3


def _make(config, builder):
    def build(rollouts):
        return BUILDS[config.build](rollouts, builder.target, config)

    return SimpleNamespace(generations=2, build=build)


@register_trajectory_builder(config_type=BrokenConfig)
async def broken_builder(config, builder):
    yield _make(config, builder)


@register_trajectory_builder(config_type=IgnoringConfig)
async def ignoring_builder(config, builder):
    yield _make(config, builder)


@register_trajectory_builder(config_type=LooseConfig)
async def loose_builder(config, builder):
    yield _make(config, builder)


@register_trajectory_builder(config_type=CountingConfig)
async def counting_builder(config, builder):
    yield _make(config, builder)
