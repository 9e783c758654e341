"""When waiting requests go to the engine's worker: at once, or in lockstep.

Lockstep makes sampling repeatable. Rounding depends on what shares a batch, so batches must not depend on when a request
happened to arrive: one is let go when every rollout under way waits for the engine, in the order of their keys. A rollout may
ask for several completions at once (`asyncio.gather`): the event loop is given a few turns in which nothing new comes.

All methods belong to the thread of the event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

QUIET_TURNS = 8
"""Turns of the event loop without a new request, after which a lockstep batch is complete."""


class Waiting(Protocol):
    """A request, as far as admission cares."""

    @property
    def order_key(self) -> str:
        """The rollout that it belongs to."""

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for it any more."""


R = TypeVar("R", bound=Waiting)


class Admission(Generic[R]):
    """Collects requests and lets them go in batches."""

    def __init__(self, release: Callable[[list[R]], None], *, deterministic: bool) -> None:
        self._release = release
        self._deterministic = deterministic
        self._pending: list[R] = []
        self._active: Counter[str] = Counter()
        self._scheduled = False
        self._quiet = 0

    def submit(self, request: R) -> None:
        """Take a request; it goes on with all that the same turn of the event loop brings."""
        self._pending.append(request)
        self._quiet = 0
        self._schedule()

    def rollout_started(self, key: str) -> None:
        """A rollout runs that may ask for something."""
        self._active[key] += 1
        self._quiet = 0

    def rollout_ended(self, key: str) -> None:
        """It will ask for nothing more."""
        self._active[key] -= 1
        if self._active[key] <= 0:
            del self._active[key]
        self._quiet = 0
        if self._pending:
            self._schedule()

    def fail(self) -> list[R]:
        """Give back all that wait; used when the engine closes."""
        waiting, self._pending = self._pending, []
        return waiting

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        if not self._deterministic:
            waiting, self._pending = self._pending, []
            self._release(waiting)
            return
        self._pending = [request for request in self._pending if not request.cancelled]
        if not self._pending or not self._active.keys() <= {request.order_key for request in self._pending}:
            return
        self._quiet += 1
        if self._quiet < QUIET_TURNS:
            self._schedule()
            return
        waiting, self._pending = sorted(self._pending, key=lambda request: request.order_key), []
        self._release(waiting)
