"""The rollout service over HTTP: `POST /rollouts`, `GET /health`. Needs the extra `serve` (starlette and uvicorn).

On loopback anybody on this machine may ask; on any other address only who knows the token.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_core import to_json

from nat_finetune import __version__
from nat_finetune.errors import ConfigError, DataError, NatFinetuneError, OutputError
from nat_finetune.served_rollouts import AskedRollout, ServedRollouts

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request

TOKEN_VARIABLE = "NAT_FINETUNE_ROLLOUT_TOKEN"
"""Environment variable of the bearer token."""
LARGEST_BODY = 16 * 2**20
"""Bytes of a request."""
GRACE = 10
"""Seconds that running rollouts get to end when the server is told to."""


class _Refused(Exception):
    """What is answered in place of a result."""

    def __init__(self, status: int, kind: str, message: str, problems: list[str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"type": kind, "message": message, "problems": problems or []}}


def rollout_app(rollouts: ServedRollouts, *, token: str | None) -> Starlette:
    """The ASGI application; with a token, only requests that carry it are served."""
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect
    from starlette.responses import Response
    from starlette.routing import Route

    def written(body: Mapping[str, Any], status: int = 200) -> Response:
        # A workflow's output may hold NaN, which is no JSON.
        return Response(to_json(body, inf_nan_mode="strings"), status, media_type="application/json")

    def answering(handle: Callable[[Request], Awaitable[dict[str, Any]]]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                _check_token(request, token)
                return written(await handle(request))
            except _Refused as refused:
                return written(refused.body, refused.status)
            except ClientDisconnect:
                return Response(status_code=499)  # it hung up amid its request; nobody reads this
            except NatFinetuneError as error:
                return written(_Refused(500, type(error).__name__, str(error)).body, 500)

        return answer

    async def not_here(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        said = f"there is no {request.method} {request.url.path}; there are POST /rollouts and GET /health"
        return written(_Refused(status, "not_found", said).body, status)

    async def make(request: Request) -> dict[str, Any]:
        asked = _parsed(await _body(request))
        try:
            return await _while_connected(request, rollouts.run(asked))
        except DataError as error:
            raise _Refused(404, "no_such_example", str(error)) from None

    async def health(request: Request) -> dict[str, Any]:
        return {"status": "ok", "version": __version__, **asdict(rollouts.counts)}

    routes = [
        Route("/rollouts", answering(make), methods=["POST"]),
        Route("/health", answering(health), methods=["GET"]),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: not_here})


def _check_token(request: Request, token: str | None) -> None:
    if token is None:
        return
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), token.encode()):
        raise _Refused(401, "unauthorized", "expected the header `Authorization: Bearer TOKEN` with this server's token")


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST_BODY:
            raise _Refused(413, "too_large", f"a request has at most {LARGEST_BODY:,} bytes")
    return bytes(body)


def _parsed(body: bytes) -> AskedRollout:
    try:
        return AskedRollout.model_validate_json(body)
    except ValidationError as error:
        # Never the input itself: it may hold a key.
        problems = [
            f"{'.'.join(str(part) for part in found['loc']) or 'body'}: {found['msg']}"
            for found in error.errors(include_url=False, include_context=False, include_input=False)
        ]
        raise _Refused(422, "bad_request", "; ".join(problems), problems) from None


async def _while_connected(request: Request, work: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    """The work's result; it is given up when the caller hangs up, so that nobody samples for a dead trainer."""
    running = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_hung_up(request))
    try:
        await asyncio.wait({running, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            raise _Refused(499, "caller_gone", "the caller closed the connection")
        return running.result()
    finally:
        for task in (running, gone):
            task.cancel()
        await asyncio.gather(running, gone, return_exceptions=True)


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


@asynccontextmanager
async def listening(app: Starlette, host: str, port: int) -> AsyncIterator[str]:
    """Serve on an address; yields the URL, and stops serving at the end, `GRACE` seconds after that at the latest.

    Raises:
        OutputError: the address is taken or not ours.
    """
    import uvicorn

    with _bound(host, port) as bound:
        settings = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=GRACE)
        server: Any = uvicorn.Server(settings)
        server.capture_signals = suppress  # it would take Ctrl-C for itself; what signals mean is whoever listens to say
        serving = asyncio.create_task(server.serve(sockets=[bound]))
        try:
            yield f"http://{f'[{host}]' if ':' in host else host}:{bound.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


async def serve_rollouts(
    rollouts: ServedRollouts, *, host: str, port: int, on_ready: Callable[[str], None], until: Callable[[], Awaitable[None]]
) -> None:
    """Serve until what `until` begins has ended.

    Raises:
        ConfigError: the address is open to others and the environment names no token, or the extra `serve` is not installed.
        OutputError: the address can't be listened on.
    """
    token = os.environ.get(TOKEN_VARIABLE) or None
    if token is None and not is_loopback(host):
        hint = f"set {TOKEN_VARIABLE} to a token that callers must send, or serve on 127.0.0.1"
        raise ConfigError(f"{host} can be reached by others: {hint}")
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise ConfigError(f"serving rollouts needs {' and '.join(missing)}: pip install 'nat-finetune[serve]'")
    async with listening(rollout_app(rollouts, token=token), host, port) as url:
        on_ready(url)
        await until()


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(1024)
    except OSError as error:
        bound.close()
        raise OutputError(f"can't listen on {host}:{port}: {error}; give another port, or 0 for a free one") from error
    return bound
