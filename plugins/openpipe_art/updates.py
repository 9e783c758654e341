"""Updates as jobs, although ART gives a train request no name.

An update is known by the step that it leads away from: that is written down before the request is sent, and the server's step
says afterwards whether the update was made, by whichever process. A stream ends without a word, whether it came to its end or
was cut off: also there the step decides.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nat_finetune_plugins.openpipe_art import stream
from nat_finetune_plugins.openpipe_art.connection import Connection

from nat_finetune.errors import BackendError, ServiceError
from nat_finetune.remote.polling import ENDED
from nat_finetune.types import JobState, TrainingJobRef, TrainingJobStatus

POLL_SECONDS = 0.5


@dataclass(slots=True)
class Update:
    """An update that this process has sent."""

    before: int
    """The step that it leads away from."""
    task: asyncio.Task[None] | None = None
    lines: list[stream.Line] = field(default_factory=list)
    cut: str | None = None
    """How the stream broke off."""
    error: str | None = None
    """Why it was not made."""
    began: float = field(default_factory=time.monotonic)


class Updates:
    """Those of a run."""

    def __init__(self, art: Connection, folder: Path | None, *, idle_timeout: float, patience: float) -> None:
        self._art = art
        self._folder = folder
        self._idle_timeout = idle_timeout
        self._patience = patience
        self._sent: dict[int, Update] = {}

    def sent(self, before: int) -> Update | None:
        """The update from that step, where this process has sent it."""
        return self._sent.get(before)

    @property
    def none_sent(self) -> bool:
        """Whether this process has sent none."""
        return not self._sent

    def send(self, before: int, step: int, body: Mapping[str, Any]) -> None:
        """Send the request, and read its stream beside everything else."""
        file = stream.StreamFile(self._folder, step)
        file.begin()
        update = Update(before)
        self._sent[before] = update
        update.task = asyncio.create_task(self._train(update, body, file), name=f"ART update from step {before}")

    async def was_made(self, before: int, step: int) -> bool:
        """Whether the update from `before` is made, or being made by this process.

        Where a request was sent and the server's step has not moved, the server may be at it still: it is given time.

        Raises:
            BackendError: the server has gone further.
        """
        update = self._sent.get(before)
        if update is not None and update.error is None:
            return True
        sent = update is None and stream.StreamFile(self._folder, step).lines() is not None
        found = await self._settled_step(before, self._patience if sent else 0.0)
        if found > before + 1:
            raise BackendError(
                f"{self._art.url}: the model is at step {found}, and the update of step {step} was to lead from {before} to "
                f"{before + 1}: something else trains it too"
            )
        return found == before + 1

    async def lost(self, ref: TrainingJobRef) -> bool:
        """Whether no process reads the stream of an update that was not made."""
        before = int(ref.metadata["step_before"])
        return self._sent.get(before) is None and await self._settled_step(before, self._patience) <= before

    async def status(self, ref: TrainingJobRef) -> TrainingJobStatus:
        """Where it stands: by the stream while this process reads it, else by the server's step."""
        before = int(ref.metadata["step_before"])
        update = self._sent.get(before)
        if update is None or update.task is None:
            step = await self._art.ask_step()
            if step > before:
                return TrainingJobStatus(JobState.COMPLETED, 1.0, f"the server is at step {step}", f"step {step}")
            message = "no process reads its stream; the server has not reached the next step"
            return TrainingJobStatus(JobState.RUNNING, None, message, f"step {step}")
        rows = stream.curve(update.lines)
        losses = dict(rows[-1]) if rows else {}
        word = f"step {before} to {before + 1}"
        if not update.task.done():
            planned = stream.planned_steps(update.lines)
            share = len(update.lines) / planned if planned else None
            return TrainingJobStatus(JobState.RUNNING, share, f"{len(rows)} optimiser steps", word, losses)
        if update.task.cancelled():
            return TrainingJobStatus(JobState.CANCELLED, None, "its stream was closed", word, losses)
        if update.error is not None:
            return TrainingJobStatus(JobState.FAILED, None, update.error, word, losses)
        return TrainingJobStatus(JobState.COMPLETED, 1.0, update.cut or "", word, losses)

    async def wait(
        self, ref: TrainingJobRef, on_status: Callable[[TrainingJobStatus], None] | None = None
    ) -> TrainingJobStatus:
        """Until it has ended; one that no process reads any more is given time, then it has failed."""
        update, last, began = self._sent.get(int(ref.metadata["step_before"])), None, time.monotonic()
        while True:
            status = await self.status(ref)
            orphan = update is None and status.state is JobState.RUNNING
            if orphan and time.monotonic() - began >= self._patience:
                message = f"{status.message} in {self._patience:g} s: it broke off with its stream"
                status = TrainingJobStatus(JobState.FAILED, None, message, status.backend_state)
            if status != last and on_status is not None:
                on_status(status)
            last = status
            if status.state in ENDED:
                return status
            if update is not None and update.task is not None:
                await asyncio.wait({update.task}, timeout=POLL_SECONDS)
            else:
                await asyncio.sleep(min(POLL_SECONDS, self._patience))

    async def cancel(self, ref: TrainingJobRef) -> None:
        """Close the stream: the server stops training with it.

        Raises:
            BackendError: another process reads the stream; ART has no request that cancels.
        """
        update = self._sent.get(int(ref.metadata["step_before"]))
        if update is None or update.task is None:
            raise BackendError(
                f"ART has no request that cancels an update: it ends with the process that reads its stream, or with the "
                f"server at {self._art.url}"
            )
        await _ended(update.task)

    async def close(self) -> None:
        """A stream that is still read ends."""
        for update in self._sent.values():
            if update.task is not None:
                await _ended(update.task)

    def lines(self, ref: TrainingJobRef) -> list[stream.Line] | None:
        """What its stream told; None where no process kept it."""
        update = self._sent.get(int(ref.metadata["step_before"]))
        return update.lines if update is not None else stream.StreamFile(self._folder, int(ref.metadata["step"])).lines()

    async def _train(self, update: Update, body: Mapping[str, Any], file: stream.StreamFile) -> None:
        """Read the stream to its end, and have the server's step say whether the update was made."""
        try:
            async for line in self._art.server.train(body, idle_timeout=self._idle_timeout):
                update.lines.append(line)
                file.add(line)
        except ServiceError as error:
            update.cut = str(error)
            if error.status is not None and 400 <= error.status < 500:
                update.error = str(error)
                return
        try:
            step = await self._settled_step(update.before, self._patience)
        except BackendError as error:
            update.error = f"{update.cut or 'its stream ended'}, and the server's step can't be asked: {error}"
            return
        if step <= update.before:
            ended = update.cut or "its stream ended without a word"
            update.error = f"{ended}; the server is still at step {step}: the update was not made"

    async def _settled_step(self, before: int, patience: float) -> int:
        """The server's step, once it has moved on from `before`, or `patience` is over (seconds)."""
        until = time.monotonic() + patience
        while True:
            step = await self._art.ask_step()
            if step > before or time.monotonic() >= until:
                return step
            await asyncio.sleep(min(POLL_SECONDS, max(until - time.monotonic(), 0.01)))


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
