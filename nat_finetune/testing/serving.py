"""An ASGI app as a real server on loopback, in a thread of this process: what rehearsals of other backends run against.

It needs the extra `serve` (starlette, uvicorn).
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nat_finetune.errors import BackendError

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGIReceiveEvent, ASGISendCallable, Scope

START_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Recorded:
    """A request as it came in."""

    method: str
    path: str
    """With the query."""
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def json(self) -> Any:
        """The body, parsed; None where it is empty."""
        return json.loads(self.body) if self.body else None


@dataclass(slots=True)
class Serving:
    """A server that runs."""

    url: str
    """Such as `http://127.0.0.1:40961`."""
    requests: list[Recorded] = field(default_factory=list)
    """All requests so far, each once its body was read."""

    def of(self, method: str, path: str) -> list[Recorded]:
        """The requests whose path begins so."""
        return [request for request in self.requests if request.method == method and request.path.startswith(path)]


@contextmanager
def serving(app: ASGI3Application, *, port: int = 0) -> Iterator[Serving]:
    """Serve the app while inside; `port` 0: a free one.

    Raises:
        BackendError: uvicorn is not installed, the port is taken, or the server does not start.
    """
    try:
        import uvicorn
    except ImportError as error:
        raise BackendError("test servers need uvicorn and starlette: pip install 'nat-finetune[serve]'") from error
    listening = _bound(port)
    running = Serving(f"http://127.0.0.1:{listening.getsockname()[1]}")
    config = uvicorn.Config(
        _recording(app, running.requests), log_config=None, lifespan="off", ws="none", http="h11", loop="asyncio",
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listening],), name=f"server {running.url}", daemon=True)
    thread.start()
    try:
        _wait_until_started(server, thread, running.url)
        yield running
    finally:
        server.should_exit = True
        thread.join(START_SECONDS)
        listening.close()


def _bound(port: int) -> socket.socket:
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
    except OSError as error:
        listening.close()
        raise BackendError(f"can't listen on 127.0.0.1:{port}: {error.strerror}") from error
    return listening


def _wait_until_started(server: Any, thread: threading.Thread, url: str) -> None:
    waiter = threading.Event()
    waited = 0.0
    while not server.started:
        if not thread.is_alive() or waited > START_SECONDS:
            raise BackendError(f"the server at {url} did not start")
        waiter.wait(0.01)
        waited += 0.01


def _recording(app: ASGI3Application, requests: list[Recorded]) -> ASGI3Application:
    """The same app; each request is read whole and kept before the app sees it."""

    async def recorded(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        messages: list[ASGIReceiveEvent] = []
        body = b""
        while True:
            message = await receive()
            messages.append(message)
            if message["type"] != "http.request":
                break
            body += message["body"]
            if not message["more_body"]:
                break
        query = scope["query_string"].decode("latin-1")
        path = scope["path"] + (f"?{query}" if query else "")
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        requests.append(Recorded(scope["method"], path, headers, body))

        async def again() -> ASGIReceiveEvent:
            return messages.pop(0) if messages else await receive()

        await app(scope, again, send)

    return recorded
