"""Faults between a client and a server: a TCP proxy that breaks chosen requests, so that it works for any of both.

Each connection carries one request (the proxy adds `Connection: close`); requests are counted in the order in which they came.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from nat_finetune.testing.http_messages import Message, read_request, read_response


class FaultKind(StrEnum):
    """What happens to a request."""

    DROP_BEFORE = "drop_before"
    """The connection is closed; the server never sees the request."""
    DROP_AFTER = "drop_after"
    """The server has processed it; the connection is closed without an answer."""
    STATUS = "status"
    """An error status instead of an answer; the server never sees the request."""
    STATUS_AFTER = "status_after"
    """The server has processed it; the client gets an error status."""
    SLOW = "slow"
    """The head of the answer, a wait, then the rest."""
    HALF_STREAM = "half_stream"
    """Half of the answer's bytes, then the connection is closed."""
    TRUNCATED_JSON = "truncated_json"
    """A whole answer, by its length, whose body ends in the middle."""
    RESTART = "restart"
    """All connections are closed, and for a while nobody listens; the server keeps what it knows."""
    REWRITE = "rewrite"
    """The JSON of the answer is changed: null progress, a status that nobody knows."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: at the request with number `at`, or at those whose method and path match, `times` times."""

    kind: FaultKind
    at: int | None = None
    """Counts from 0 over all requests; None: any that matches."""
    match: str = ""
    """Regular expression, searched in `METHOD path`."""
    times: int = 1
    code: int = 500
    headers: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.2
    """Of `slow` and `restart`."""
    change: Callable[[Any], Any] | None = None
    """Of `rewrite`: gets the parsed answer, returns the one that is sent."""

    def hits(self, number: int, request: str) -> bool:
        """Whether it is meant for this request."""
        return self.at in (None, number) and re.search(self.match, request) is not None


@dataclass(slots=True)
class FaultPlan:
    """Faults, each spent after its `times`; of several that fit, the first."""

    faults: Sequence[Fault] = ()
    spent: list[int] = field(default_factory=list)
    """Index of the fault, in the order in which they came to pass."""

    def take(self, number: int, request: str) -> Fault | None:
        """The fault of a request."""
        for index, fault in enumerate(self.faults):
            if fault.hits(number, request) and self.spent.count(index) < fault.times:
                self.spent.append(index)
                return fault
        return None


@dataclass(frozen=True, slots=True)
class Passed:
    """A request that came to the proxy."""

    number: int
    method: str
    path: str
    fault: FaultKind | None
    processed: bool
    """Whether the server got it."""


class FaultProxy:
    """Listens on loopback in a thread of its own; make it with `faulty`."""

    def __init__(self, upstream: str, plan: FaultPlan, port: int = 0) -> None:
        address = urlsplit(upstream)
        self._upstream = (address.hostname or "127.0.0.1", address.port or 80)
        self._plan = plan
        self.seen: list[Passed] = []
        self._count = 0
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault proxy", daemon=True)

    @property
    def url(self) -> str:
        """Where clients go instead of the server."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Listen."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    def stop(self) -> None:
        """Close everything."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port, limit=2**20)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._drop_all()
        await asyncio.sleep(0)
        pending = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)

    def _drop_all(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            request = await read_request(reader)
            if request is not None:
                await self._answer(request, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(writer)
            with suppress(ConnectionError):
                writer.close()

    async def _answer(self, request: Message, writer: asyncio.StreamWriter) -> None:
        method, path, _ = request.first.split(" ", 2)
        number, self._count = self._count, self._count + 1
        fault = self._plan.take(number, f"{method} {path}")
        kind = fault.kind if fault is not None else None
        processed = kind not in (FaultKind.DROP_BEFORE, FaultKind.STATUS, FaultKind.RESTART)
        self.seen.append(Passed(number, method, path, kind, processed))
        if fault is None:
            await self._relay(request, writer)
        elif kind is FaultKind.RESTART:
            await self._restart(fault.seconds)
        elif kind is FaultKind.DROP_BEFORE:
            writer.transport.abort()
        elif kind is FaultKind.STATUS:
            await _send(writer, _refusal(fault))
        else:
            await _spoilt(fault, await self._asked(request), writer)

    async def _asked(self, request: Message) -> Message:
        """The server's whole answer."""
        reader, upstream = await asyncio.open_connection(*self._upstream, limit=2**20)
        try:
            upstream.write(request.closing().encoded())
            await upstream.drain()
            return await read_response(reader, to_head=request.first.startswith("HEAD "))
        finally:
            upstream.close()

    async def _relay(self, request: Message, writer: asyncio.StreamWriter) -> None:
        """Hand on what comes, as it comes."""
        reader, upstream = await asyncio.open_connection(*self._upstream, limit=2**20)
        try:
            upstream.write(request.closing().encoded())
            await upstream.drain()
            while block := await reader.read(65536):
                writer.write(block)
                await writer.drain()
        finally:
            upstream.close()

    async def _restart(self, seconds: float) -> None:
        if self._server is not None:
            self._server.close()
        self._drop_all()
        await asyncio.sleep(seconds)
        await self._listen()


def _refusal(fault: Fault) -> Message:
    body = json.dumps({"detail": f"injected {fault.code}"}).encode()
    headers = {"content-type": "application/json", "connection": "close", **fault.headers}
    return Message(f"HTTP/1.1 {fault.code} {HTTPStatus(fault.code).phrase}", headers, body).sized()


async def _spoilt(fault: Fault, answer: Message, writer: asyncio.StreamWriter) -> None:
    """Send what the fault leaves of an answer."""
    if fault.kind is FaultKind.DROP_AFTER:
        writer.transport.abort()
    elif fault.kind is FaultKind.STATUS_AFTER:
        await _send(writer, _refusal(fault))
    elif fault.kind is FaultKind.TRUNCATED_JSON:
        await _send(writer, answer.with_body(answer.body[: len(answer.body) // 2]))
    elif fault.kind is FaultKind.REWRITE and fault.change is not None:
        await _send(writer, answer.with_body(json.dumps(fault.change(json.loads(answer.body))).encode()))
    else:
        whole = answer.sized().encoded()
        middle = len(whole) - len(answer.body) // 2 - 1
        writer.write(whole[:middle])
        await writer.drain()
        if fault.kind is FaultKind.HALF_STREAM:
            return
        await asyncio.sleep(fault.seconds)
        writer.write(whole[middle:])
        await writer.drain()


async def _send(writer: asyncio.StreamWriter, message: Message) -> None:
    writer.write(message.encoded())
    await writer.drain()


@contextmanager
def faulty(upstream: str, *faults: Fault, port: int = 0) -> Iterator[FaultProxy]:
    """A proxy before the server at `upstream` (`http://host:port`) while inside."""
    proxy = FaultProxy(upstream, FaultPlan(faults), port)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()
