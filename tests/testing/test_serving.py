"""A test server is a real one: requests come over a socket and are kept as they came."""

from __future__ import annotations

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from nat_finetune.errors import BackendError
from nat_finetune.testing.serving import serving


async def echo(request: Request) -> JSONResponse:
    return JSONResponse({"got": (await request.body()).decode(), "at": str(request.url)})


APP = Starlette(routes=[Route("/echo", echo, methods=["GET", "POST"])])


def test_requests_are_answered_and_kept():
    with serving(APP) as server, httpx.Client(trust_env=False) as client:
        body = "x" * 200_000
        assert client.post(f"{server.url}/echo?a=1", content=body, headers={"X-Key": "k"}).json()["got"] == body
        assert client.get(f"{server.url}/echo").json()["at"] == f"{server.url}/echo"
        assert client.get(f"{server.url}/none").status_code == 404
    first = server.requests[0]
    assert (first.method, first.path, first.headers["x-key"], len(first.body)) == ("POST", "/echo?a=1", "k", 200_000)
    assert [request.path for request in server.of("GET", "/e")] == ["/echo"]
    with httpx.Client(trust_env=False) as client, pytest.raises(httpx.ConnectError):
        client.get(f"{server.url}/echo")


def test_a_port_that_is_taken_is_said():
    with serving(APP) as server:
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(BackendError, match=f"can't listen on 127.0.0.1:{port}"), serving(APP, port=port):
            pass
