"""What a coroutine waits for, and how the engine's worker answers it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nat_finetune.errors import BackendError, NatFinetuneError, PolicyFailure, Stage
from nat_finetune.local.columns import Row
from nat_finetune.local.scoring import ScoreRow
from nat_finetune.types import SamplingParams


@dataclass(slots=True, eq=False)
class Request:
    """A row to generate, or rows to score."""

    order_key: str
    future: asyncio.Future[Any]
    row: Row | None = None
    score_rows: Sequence[ScoreRow] = ()
    temperature: float = 1.0
    stop_ids: tuple[int, ...] = ()
    cancelled: bool = False
    """Nobody waits any more."""
    version: int = 0
    """The policy version that serves it."""

    async def result(self) -> Any:
        """Wait for the answer; being cancelled meanwhile tells the worker to forget it."""
        try:
            return await self.future
        except asyncio.CancelledError:
            self.cancelled = True
            raise


def row_of(prompt_ids: Sequence[int], sampling: SamplingParams, stop_ids: tuple[int, ...], *, max_context: int | None) -> Row:
    """A row to generate; BackendError or PolicyFailure for what can't be (see `Engine.generate`)."""
    penalties = [name for name in sampling.truncating if name.endswith("penalty")]
    if penalties:
        raise BackendError(f"the local engine does not apply {', '.join(penalties)}: leave them out")
    if sampling.seed is None:
        raise BackendError("the local engine needs a seed for each call: set SamplingParams.seed")
    if not prompt_ids:
        raise BackendError("the prompt has no tokens: the chat template rendered nothing")
    limit = sampling.max_tokens
    if max_context is not None:
        room = max_context - len(prompt_ids)
        if room < 1:
            raise PolicyFailure(
                f"the prompt has {len(prompt_ids)} tokens, the context holds {max_context}: no room for a completion",
                stage=Stage.MODEL,
                error_type="PromptTooLong",
            )
        limit = min(limit, room)
    seed = sampling.seed & ((1 << 64) - 1)
    return Row(tuple(prompt_ids), limit, sampling, seed - (1 << 64) if seed >> 63 else seed, stop_ids, None)


def answer(answers: Sequence[tuple[Request, Any]]) -> None:
    """Wake the coroutines, from any thread, with a result or an exception: one call into each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Request, Any]]] = {}
    for request, value in answers:
        by_loop.setdefault(request.future.get_loop(), []).append((request, value))
    for loop, mine in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, mine)
        except RuntimeError:
            continue  # that loop is closed, and with it whoever waited


def refuse(requests: Sequence[Request], message: str, cause: BaseException | None = None) -> None:
    """Answer with a BackendError each (one exception object must not be raised in two tasks)."""
    answers = []
    for request in requests:
        error = BackendError(message)
        error.__cause__ = cause
        answers.append((request, error))
    answer(answers)


def failure_text(doing: str, error: NatFinetuneError) -> tuple[str, BaseException]:
    """What to tell the callers of a failed forward, and its cause."""
    cause = error.__cause__ if error.__cause__ is not None else error
    return f"the local engine failed while {doing}: {type(cause).__name__}: {cause}", cause


def _resolve(answers: Sequence[tuple[Request, Any]]) -> None:
    for request, value in answers:
        if request.future.done():
            continue
        if isinstance(value, BaseException):
            request.future.set_exception(value)
        else:
            request.future.set_result(value)
