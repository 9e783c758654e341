"""Continuous batching: many coroutines ask, one worker thread samples for all of them.

Requests wait in `admission`; the worker admits them between decode steps while there is room. Weights may change only inside
`exclusive()`, which is granted when nothing is under way: no completion mixes two versions.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from nat_finetune.errors import BackendError, NatFinetuneError, PolicyFailure, Stage, boundary
from nat_finetune.local.admission import Admission
from nat_finetune.local.batch import Batch
from nat_finetune.local.columns import Finished
from nat_finetune.local.device import end_helpers
from nat_finetune.local.forward import Forward
from nat_finetune.local.requests import Request, answer, failure_text, refuse, row_of
from nat_finetune.local.scoring import ScoreRow, score
from nat_finetune.types import FinishReason, SamplingParams

CLOSE_SECONDS = 30.0
PREFIX_CACHE_BYTES = 1 << 30
_CLOSED = "the engine was closed"


@dataclass(frozen=True, slots=True)
class Generation:
    """What the engine sampled for one request."""

    completion_ids: tuple[int, ...]
    """End-of-turn token included, where it was sampled."""
    logprobs: tuple[float, ...]
    """Nats, full softmax at the sampling temperature (at 1 where that is 0)."""
    finish_reason: FinishReason
    policy_version: int


@dataclass(slots=True)
class _Work:
    """What the worker does next."""

    version: int
    admit: list[Request] = field(default_factory=list)
    score: Request | None = None


class Engine:
    """Generates and scores with one model.

    Args:
        forward: the model (see `forward.forward_of`).
        tokenizer: decodes for stop strings.
        max_batch: most sequences under way at once.
        max_context: most tokens of prompt and completion; None for no limit.
        deterministic: lockstep admission (see `admission`); nothing read for one batch serves another, for rounding would tell.
        prefix_cache_bytes: memory for keys and values of earlier prompts and replies (see `prefix_cache`); 0 for none.
    """

    def __init__(
        self,
        forward: Forward,
        tokenizer: Any,
        *,
        max_batch: int = 64,
        max_context: int | None = None,
        deterministic: bool = False,
        prefix_cache_bytes: int = PREFIX_CACHE_BYTES,
    ) -> None:
        self._tokenizer = tokenizer
        self._max_batch = max_batch
        self._max_context = max_context
        self._deterministic = deterministic
        self._admission: Admission[Request] = Admission(self._release, deterministic=deterministic)
        self._forward = forward
        self._prefix_cache_bytes = 0 if deterministic else prefix_cache_bytes
        self._batch = self._batch_of(forward)
        self._changed = threading.Condition()  # guards everything below
        self._inbox: deque[list[Request]] = deque()
        self._scores: deque[Request] = deque()
        self._version = 0
        self._busy = False
        self._wanted = 0
        self._holder: int | None = None
        self._closed = False
        self._worker = threading.Thread(target=self._work, name="nat-finetune-engine", daemon=True)
        self._worker.start()

    # ------------------------------------------------------------------------------------------------------- for callers

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, stop_ids: Sequence[int], order_key: str = ""
    ) -> Generation:
        """Sample one completion.

        Args:
            prompt_ids: at least one token.
            sampling: `seed` must be set; penalties are refused.
            stop_ids: end-of-turn tokens.
            order_key: the rollout that asks (see `rollout_started`).

        Raises:
            PolicyFailure: the prompt fills the context.
            BackendError: the model failed, or the engine is closed.
        """
        row = row_of(prompt_ids, sampling, tuple(stop_ids), max_context=self._max_context)
        request = Request(order_key, asyncio.get_running_loop().create_future(), row=row)
        row.owner = request
        self._refuse_when_closed()
        self._admission.submit(request)
        finished: Finished = await request.result()
        return Generation(finished.completion_ids, finished.logprobs, finished.finish_reason, request.version)

    async def score(
        self, rows: Sequence[ScoreRow], *, temperature: float = 1.0, stop_ids: Sequence[int] = ()
    ) -> list[list[float]]:
        """Teacher-forced logprobs of completions (see `scoring.score`), nats.

        Raises:
            PolicyFailure: a row is longer than the context.
            BackendError: the model failed, or the engine is closed.
        """
        if not rows:
            return []
        longest = max(len(prompt) + len(completion) for prompt, completion in rows)
        if self._max_context is not None and longest > self._max_context + 1:  # the last token is predicted, not read
            raise PolicyFailure(f"{longest} tokens to score, the context holds {self._max_context}", stage=Stage.MODEL)
        future = asyncio.get_running_loop().create_future()
        request = Request("", future, score_rows=rows, temperature=temperature, stop_ids=tuple(stop_ids))
        self._refuse_when_closed()
        with self._changed:
            self._scores.append(request)
            self._changed.notify_all()
        result: list[list[float]] = await request.result()
        return result

    def rollout_started(self, key: str) -> None:
        """A rollout begins, whose requests have this `order_key`: lockstep waits for it."""
        self._admission.rollout_started(key)

    def rollout_ended(self, key: str) -> None:
        """It asks for nothing more."""
        self._admission.rollout_ended(key)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the model: waits until all that is under way has ended; what comes meanwhile waits. May be nested."""
        me = threading.get_ident()
        with self._changed:
            nested = self._holder == me
            if not nested:
                self._wanted += 1
                self._changed.wait_for(lambda: not self._busy and self._holder is None)
                self._wanted, self._holder = self._wanted - 1, me
        try:
            yield
        finally:
            if not nested:
                end_helpers()
                with self._changed:
                    self._holder = None
                    self._changed.notify_all()

    def use(self, forward: Forward, version: int) -> None:
        """Go on with these weights under this version; drops every cache. Waits for `exclusive()`."""
        with self.exclusive(), self._changed:
            self._version = version
            if forward is self._forward:
                self._batch.new_weights()
            forward.refresh(changed=True)
            if forward is not self._forward:
                self._forward, self._batch = forward, self._batch_of(forward)

    def close(self) -> None:
        """End the worker; whoever still waits gets a BackendError. Closing again does nothing."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._worker.join(CLOSE_SECONDS)
        refuse(self._admission.fail(), _CLOSED)

    def _batch_of(self, forward: Forward) -> Batch:
        return Batch(forward, self._tokenizer, prefix_cache_bytes=self._prefix_cache_bytes)

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise BackendError(_CLOSED)

    def _release(self, requests: list[Request]) -> None:
        with self._changed:
            if not self._closed:
                for start in range(0, len(requests), self._max_batch):
                    self._inbox.append(requests[start : start + self._max_batch])
                self._changed.notify_all()
                return
        refuse(requests, _CLOSED)

    # -------------------------------------------------------------------------------------------------------- the worker

    def _work(self) -> None:
        try:
            with torch.inference_mode():
                while (work := self._next()) is not None:
                    self._do(work)
        finally:
            with self._changed:
                self._closed = True
                waiting = [request for requests in self._inbox for request in requests] + list(self._scores)
                self._inbox.clear()
                self._scores.clear()
                self._busy = False
                self._changed.notify_all()
            waiting += [row.owner for row in self._batch.rows]
            self._batch.clear()
            refuse(waiting, _CLOSED)

    def _next(self) -> _Work | None:
        """Wait for something to do; None when closed."""
        with self._changed:
            while not self._closed:
                free = self._holder is None and self._wanted == 0
                if len(self._batch) or (free and (self._inbox or self._scores)):
                    self._busy = True
                    return self._taken() if free else _Work(self._version)
                if self._busy:
                    end_helpers()
                self._busy = False
                self._changed.notify_all()
                self._changed.wait()
        return None

    def _taken(self) -> _Work:
        work = _Work(self._version)
        while self._scores and work.score is None:
            request = self._scores.popleft()
            work.score = None if request.cancelled else request
        if self._deterministic:
            if not len(self._batch) and self._inbox:
                self._batch.clear()  # nothing that an earlier batch left behind may have an influence
                work.admit = [request for request in self._inbox.popleft() if not request.cancelled]
            return work
        room = self._max_batch - len(self._batch)
        while self._inbox and room > 0:
            requests = self._inbox.popleft()
            work.admit += [request for request in requests[:room] if not request.cancelled]
            if requests[room:]:
                self._inbox.appendleft(requests[room:])
            room = self._max_batch - len(self._batch) - len(work.admit)
        return work

    def _do(self, work: _Work) -> None:
        if work.score is not None:
            self._score(work.score)
        for request in work.admit:
            request.version = work.version
        try:
            with boundary(Stage.MODEL):
                finished = self._advance(work)
        except NatFinetuneError as error:
            failed = {id(request): request for request in [*work.admit, *(row.owner for row in self._batch.rows)]}
            self._batch.clear()
            refuse(list(failed.values()), *failure_text("generating", error))
            return
        answer([(ended.row.owner, ended) for ended in finished])

    def _advance(self, work: _Work) -> list[Finished]:
        """One decode step of what is under way, and the first token of what is new."""
        gone = [row for row in self._batch.rows if row.owner.cancelled]
        if gone:
            self._batch.drop(gone)
        finished = self._batch.step() if len(self._batch) else []
        if work.admit:
            finished += self._batch.admit([request.row for request in work.admit if request.row is not None])
        return finished

    def _score(self, request: Request) -> None:
        try:
            with boundary(Stage.MODEL):
                values = score(self._forward, request.score_rows, temperature=request.temperature, stop_ids=request.stop_ids)
        except NatFinetuneError as error:
            refuse([request], *failure_text("scoring", error))
            return
        answer([(request, values)])
