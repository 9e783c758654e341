"""The events of one rollout, in the order in which they began."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from nat_finetune.data.seeds import derive_seed
from nat_finetune.types import Event


class Recorder:
    """Collects the events of one rollout; may be used from several threads.

    A call takes its number when it begins (`reserve`) and is added when it ends, so that a function stands before the calls
    that it made, and the order does not depend on which of two parallel calls ended first.
    """

    def __init__(self, rollout_id: str, seed: int, clock: Callable[[], float] = time.time) -> None:
        self.rollout_id = rollout_id
        self.seed = seed
        self.clock = clock
        self._events: dict[int, Event] = {}
        self._next = 0
        self._lock = threading.Lock()

    def reserve(self) -> int:
        """The next event's `seq`."""
        with self._lock:
            seq, self._next = self._next, self._next + 1
        return seq

    def add(self, event: Event) -> None:
        """Keep a finished event."""
        with self._lock:
            self._events[event.seq] = event

    def call_seed(self, seq: int) -> int:
        """The sampling seed of the model call with this `seq`."""
        return derive_seed(self.seed, "call", seq)

    @property
    def events(self) -> tuple[Event, ...]:
        """What was recorded so far, by `seq`. A call that was cancelled leaves a gap."""
        with self._lock:
            return tuple(self._events[seq] for seq in sorted(self._events))


_LONGEST_INTEGER = 14_000
"""Bits: Python neither writes nor reads more than 4300 decimal digits."""


def plain(value: Any) -> Any:
    """A JSON-able picture of a value: what is not JSON is shown by its `repr`."""
    if isinstance(value, str):
        return writable(value)
    if isinstance(value, int) and value.bit_length() > _LONGEST_INTEGER:
        return hex(value)
    if value is None or isinstance(value, int | float | bool):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {writable(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return writable(repr(value))


def writable(text: str) -> str:
    """A text as UTF-8 can hold it: half of a surrogate pair, which Python's texts may contain, becomes its escape."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")
