"""Following a job to its end: what is unknown is shown, what fails is tried again, and nothing is waited for without end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from nat_finetune.errors import BackendError, JobGoesOn, OutOfReach
from nat_finetune.types import JobState, TrainingJobStatus

ENDED = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED})
LONGEST_BACKOFF = 8.0
"""Times the interval: the longest wait after failures."""


async def follow(
    read: Callable[[], Awaitable[TrainingJobStatus]],
    *,
    interval: float,
    timeout: float | None,
    max_failures: int,
    on_status: Callable[[TrainingJobStatus], None] | None = None,
    what: str = "the job",
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> TrainingJobStatus:
    """Ask until the job has ended; the last status.

    Args:
        read: asks the backend once.
        interval: seconds between two questions; after failures 1.5 times more each, up to 8 times.
        timeout: seconds for all of it; None: as long as it takes.
        max_failures: transient errors in a row that end it.
        on_status: gets every status that differs from the one before: unknown words included, once each.
        what: the job, for messages.
        clock: seconds.
        sleep: waits so many seconds.

    Raises:
        JobGoesOn: the timeout is over, the job is not.
        OutOfReach: `max_failures` questions in a row had no answer.
        BackendError: what `read` raised, where asking again would not help.
    """
    began, failures, last = clock(), 0, None
    while True:
        try:
            status = await read()
        except BackendError as error:
            if not error.transient:
                raise
            failures += 1
            if failures >= max_failures:
                raise OutOfReach(f"{what}: {failures} questions in a row had no answer; the last: {error}") from error
        else:
            failures = 0
            if status != last and on_status is not None:
                on_status(status)
            last = status
            if status.state in ENDED:
                return status
        wait = interval * min(1.5**failures, LONGEST_BACKOFF)
        spent = clock() - began
        if timeout is not None and spent + wait > timeout:
            said = "its state could not be read" if last is None else f"it is {described(last)}"
            raise JobGoesOn(f"{what} has not ended in {timeout:g} s: {said}")
        await sleep(wait)


def described(status: TrainingJobStatus) -> str:
    """A status in words: the backend's own, the share done where it is known, the message."""
    word = status.backend_state or status.state.value
    unknown = " (a status that nat-finetune does not know)" if status.state is JobState.UNKNOWN else ""
    share = "" if status.progress is None else f", {status.progress:.0%}"
    losses = "".join(f", {name} {value:.4g}" for name, value in status.metrics.items())
    return f"{word}{unknown}{share}{losses}" + (f": {status.message}" if status.message else "")
