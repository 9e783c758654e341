"""What a run will take, before it is paid for: rollouts, tokens, time, money, and what fits into a window. Arithmetic only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Work:
    """What a config asks for."""

    examples: int
    generations: int
    """Rollouts of each example in a pass."""
    passes: int
    """Over the examples, in the whole run."""
    updates: int
    held_out: Mapping[str, int] = field(default_factory=dict)
    """Rollouts of one evaluation, by `validation` and `test`; none where all scores are exact."""
    exact: Mapping[str, int] = field(default_factory=dict)
    """Examples of one evaluation whose scores are all exact, by `validation` and `test`."""
    validations: int = 0
    """Evaluations of the validation set in the whole run."""

    @property
    def rollouts(self) -> int:
        """To train on, in the whole run."""
        return self.examples * self.generations * self.passes

    @property
    def evaluation_rollouts(self) -> int:
        """To validate and to test."""
        return self._evaluated(self.held_out)

    @property
    def exact_evaluations(self) -> int:
        """Examples that are scored exactly, in the whole run."""
        return self._evaluated(self.exact)

    def _evaluated(self, sizes: Mapping[str, int]) -> int:
        """The test set is evaluated before and after."""
        return self.validations * sizes.get("validation", 0) + 2 * sizes.get("test", 0)


@dataclass(frozen=True, slots=True)
class Speeds:
    """How fast it goes, measured or given; None is unknown."""

    rollout_seconds: float | None = None
    """One rollout, from its start to its end, with `slots` of them at once."""
    slots: int = 1
    """Rollouts at once."""
    update_seconds: float | None = None
    """One update."""
    exact_seconds: float | None = None
    """To score one example exactly."""
    calls: float | None = None
    """Model calls of a rollout."""
    candidates: float | None = None
    """Scored candidates of a rollout."""
    prompt_tokens: float | None = None
    """Of a rollout, all calls."""
    completion_tokens: float | None = None


@dataclass(frozen=True, slots=True)
class Prices:
    """Money for a million tokens, in any currency."""

    prompt: float = 0.0
    completion: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run will take; None is unknown."""

    work: Work
    speeds: Speeds
    collection_seconds: float | None
    """Of all rollouts to train on."""
    update_seconds: float | None
    evaluation_seconds: float | None
    window_seconds: float | None = None

    @property
    def total_seconds(self) -> float | None:
        """All of it; None where a part is unknown."""
        parts = (self.collection_seconds, self.update_seconds, self.evaluation_seconds)
        return None if any(part is None for part in parts) else math.fsum(part for part in parts if part is not None)

    @property
    def left_seconds(self) -> float | None:
        """What collection leaves of the window, for updates and evaluation; negative where it does not fit."""
        if self.window_seconds is None or self.collection_seconds is None:
            return None
        return self.window_seconds - self.collection_seconds

    @property
    def updates_in_window(self) -> int | None:
        """Updates that fit, each with its share of the collection, after the evaluations."""
        if self.window_seconds is None or self.total_seconds is None or self.evaluation_seconds is None:
            return None
        room = self.window_seconds - self.evaluation_seconds
        each = (self.total_seconds - self.evaluation_seconds) / self.work.updates
        return max(0, min(self.work.updates, math.floor(room / each + 1e-9))) if each > 0 else self.work.updates

    def tokens(self, kind: str) -> float | None:
        """`prompt` or `completion` tokens of all rollouts, training and evaluation."""
        each = self.speeds.prompt_tokens if kind == "prompt" else self.speeds.completion_tokens
        return None if each is None else each * (self.work.rollouts + self.work.evaluation_rollouts)

    def cost(self, prices: Prices) -> float | None:
        """Money for all tokens."""
        prompt, completion = self.tokens("prompt"), self.tokens("completion")
        if prompt is None or completion is None:
            return None
        return (prompt * prices.prompt + completion * prices.completion) / 1e6


def make_plan(work: Work, speeds: Speeds, window_seconds: float | None = None) -> Plan:
    """Work times speeds.

    A rollout takes its time in one of the slots, and slots are busy all the time: `rollouts * rollout_seconds / slots`.
    """
    collection = _collection(work.rollouts, speeds)
    updates = None if speeds.update_seconds is None else work.updates * speeds.update_seconds
    return Plan(work, speeds, collection, updates, _evaluation(work, speeds), window_seconds)


def largest_generations(work: Work, speeds: Speeds, window_seconds: float) -> int | None:
    """The most generations whose collection fits into a window; 0 where not even one does, None where speeds are unknown.

    Updates are counted as they are measured at the config's number of generations, in proportion.
    """
    one = make_plan(replace(work, generations=1), speeds)
    if one.collection_seconds is None:
        return None
    update = (speeds.update_seconds or 0.0) * work.updates / work.generations
    room = window_seconds - (one.evaluation_seconds or 0.0)
    each = one.collection_seconds + update
    return max(0, math.floor(room / each + 1e-9)) if each > 0 else None


def _evaluation(work: Work, speeds: Speeds) -> float | None:
    sampled, exact = _collection(work.evaluation_rollouts, speeds), work.exact_evaluations
    if sampled is None or (exact and speeds.exact_seconds is None):
        return None
    return sampled + exact * (speeds.exact_seconds or 0.0)


def _collection(rollouts: int, speeds: Speeds) -> float | None:
    if rollouts == 0:
        return 0.0
    return None if speeds.rollout_seconds is None else rollouts * speeds.rollout_seconds / speeds.slots
