"""Which steps a run has, in which order: known beforehand, so that a resume finds its place by the number of a step."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence

from nat_finetune.config.schema import FinetuningConfig, ValidationConfig
from nat_finetune.data.seeds import derive_seed
from nat_finetune.interfaces import Round, Step
from nat_finetune.types import Example

_MARGIN = 1.2
"""Evaluations may last this much longer than before."""


class Budget:
    """The time that a session may take: training ends in time for what comes after it."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._began = self._last = clock()
        self._longest = 0.0

    def step_done(self, evaluation_seconds: float) -> str | None:
        """Take note of a step's time; why training ends with it, None where it goes on.

        It ends where a further step, as long as the longest so far, would leave too little for the evaluations after it, which
        lasted `evaluation_seconds` before.
        """
        now = self._clock()
        self._longest, self._last = max(self._longest, now - self._last), now
        if now - self._began + self._longest + _MARGIN * evaluation_seconds <= self.seconds:
            return None
        return f"the budget of {self.seconds:,.0f} s has no room for a further step"


class EpochSchedule:
    """`num_epochs` passes over the examples, `examples_per_step` at a time, each pass in an order of its own."""

    def __init__(self, config: FinetuningConfig, examples: Sequence[Example]) -> None:
        self._config = config
        self._examples = list(examples)
        self._size = config.examples_per_step or len(self._examples)
        self.per_epoch = -(-len(self._examples) // self._size)
        """Steps of an epoch."""
        self.total = config.num_epochs * self.per_epoch
        """Steps of the run."""

    def step(self, index: int) -> Step:
        """Step `index` of the run: its examples are a slice of its epoch's shuffled order."""
        epoch, position = divmod(index, self.per_epoch)
        order = list(self._examples)
        random.Random(derive_seed(self._config.seed, "order", epoch)).shuffle(order)
        examples = tuple(order[position * self._size : (position + 1) * self._size])
        ends_epoch = position == self.per_epoch - 1
        last = index == self.total - 1
        return Step(index, epoch, examples, ends_epoch, _is_validated(self._config.validation, index, epoch, ends_epoch, last))


class RoundSchedule:
    """Rounds of `passes` over all examples, then `num_epochs` updates on what was built; `warm_ups` before the very first.

    The first update (or warm-up) of a round shares the number of its last pass: rounds of one pass and one update are steps
    0, 1, 2, ...
    """

    def __init__(
        self, config: FinetuningConfig, examples: Sequence[Example], *, passes: int, rounds: int = 1, warm_ups: int = 0
    ) -> None:
        self._config = config
        self._examples = tuple(examples)
        self._passes, self._warm_ups, self._rounds = passes, warm_ups, rounds
        self._per_round = passes + config.num_epochs - 1
        self.total = rounds * self._per_round + warm_ups
        """Steps of the run."""

    def rounds(self) -> Iterator[Round]:
        """All rounds of the run."""
        updates = self._config.num_epochs
        for index in range(self._rounds):
            warm_ups = self._warm_ups if index == 0 else 0
            first = index * self._per_round + self._warm_ups - warm_ups
            epoch = index * updates + self._warm_ups - warm_ups
            begin = first + self._passes - 1
            made = tuple(
                self._update(begin + i, epoch + i, last=i == warm_ups + updates - 1) for i in range(warm_ups + updates)
            )
            passes = tuple(Step(first + i, epoch, self._examples) for i in range(self._passes))
            yield Round(index, passes, made[:warm_ups], made[warm_ups:])

    def _update(self, index: int, epoch: int, *, last: bool) -> Step:
        validated = _is_validated(self._config.validation, index, epoch, ends_epoch=True, last=last)
        return Step(index, epoch, self._examples, last_of_epoch=True, validated=validated)


def _is_validated(settings: ValidationConfig | None, index: int, epoch: int, ends_epoch: bool, last: bool) -> bool:
    """Whether the validation set is looked at after a step: by `interval` (epochs), by `interval_steps`, and at the end."""
    if settings is None:
        return False
    by_steps = settings.interval_steps is not None and (index + 1) % settings.interval_steps == 0
    return last or by_steps or (ends_epoch and (epoch + 1) % settings.interval == 0)
