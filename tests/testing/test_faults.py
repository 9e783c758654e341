"""Each fault is what it says, seen by a real client before a real server."""

from __future__ import annotations

import time

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from nat_finetune.testing.faults import Fault, FaultKind, faulty
from nat_finetune.testing.serving import serving


async def jobs(request: Request) -> JSONResponse:
    return JSONResponse({"length": len(await request.body()), "progress": 0.5, "status": "running"})


async def lines(request: Request) -> StreamingResponse:
    return StreamingResponse(iter(["1\n", "2\n"]), media_type="application/x-ndjson")


APP = Starlette(routes=[Route("/jobs", jobs, methods=["GET", "POST"]), Route("/lines", lines)])


@pytest.fixture(scope="module")
def server():
    with serving(APP) as running:
        yield running


@pytest.fixture
def client():
    with httpx.Client(trust_env=False, timeout=5.0) as made:
        yield made


def test_without_a_fault_nothing_is_changed(server, client):
    with faulty(server.url) as proxy:
        assert client.post(f"{proxy.url}/jobs", content=b"x" * 300_000).json()["length"] == 300_000
        assert client.post(f"{proxy.url}/jobs", content=iter([b"ab", b"c"])).json()["length"] == 3
        assert client.get(f"{proxy.url}/lines").text == "1\n2\n"
        assert client.head(f"{proxy.url}/jobs").status_code == 200
    assert (proxy.seen[0].number, proxy.seen[0].method, proxy.seen[0].path, proxy.seen[0].fault) == (0, "POST", "/jobs", None)
    assert all(p.processed for p in proxy.seen)


@pytest.mark.parametrize(("kind", "processed"), [(FaultKind.DROP_BEFORE, False), (FaultKind.DROP_AFTER, True)])
def test_dropped(server, client, kind, processed):
    before = len(server.requests)
    with faulty(server.url, Fault(kind, at=1)) as proxy:
        assert client.get(f"{proxy.url}/jobs").status_code == 200
        with pytest.raises(httpx.TransportError):
            client.get(f"{proxy.url}/jobs")
        assert client.get(f"{proxy.url}/jobs").status_code == 200
    assert len(server.requests) - before == 2 + processed
    assert [p.fault for p in proxy.seen] == [None, kind, None]


@pytest.mark.parametrize(("kind", "processed"), [(FaultKind.STATUS, False), (FaultKind.STATUS_AFTER, True)])
def test_an_error_status(server, client, kind, processed):
    before = len(server.requests)
    fault = Fault(kind, match="^GET /jobs", times=2, code=429, headers={"retry-after": "1"})
    with faulty(server.url, fault) as proxy:
        assert client.post(f"{proxy.url}/jobs").status_code == 200
        answers = [client.get(f"{proxy.url}/jobs") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [429, 429, 200]
    assert answers[0].headers["retry-after"] == "1"
    assert len(server.requests) - before == 2 + 2 * processed


def test_slow(server, client):
    with faulty(server.url, Fault(FaultKind.SLOW, seconds=0.3)) as proxy:
        began = time.monotonic()
        assert client.get(f"{proxy.url}/jobs").json()["status"] == "running"
    assert time.monotonic() - began >= 0.3


@pytest.mark.parametrize("path", ["jobs", "lines"])
def test_half_a_stream(server, client, path):
    with faulty(server.url, Fault(FaultKind.HALF_STREAM)) as proxy, pytest.raises(httpx.RemoteProtocolError):
        client.get(f"{proxy.url}/{path}")


def test_truncated_json_is_whole_by_its_length(server, client):
    with faulty(server.url, Fault(FaultKind.TRUNCATED_JSON)) as proxy:
        answer = client.get(f"{proxy.url}/jobs")
    assert answer.status_code == 200
    with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
        answer.json()


def test_rewritten(server, client):
    change = Fault(FaultKind.REWRITE, change=lambda data: data | {"progress": None, "status": "zorp"})
    with faulty(server.url, change) as proxy:
        answer = client.get(f"{proxy.url}/jobs").json()
    assert (answer["progress"], answer["status"]) == (None, "zorp")


def test_a_restart(server, client):
    with faulty(server.url, Fault(FaultKind.RESTART, seconds=0.3)) as proxy:
        with pytest.raises(httpx.TransportError):
            client.get(f"{proxy.url}/jobs")
        time.sleep(0.05)
        with pytest.raises(httpx.ConnectError):
            client.get(f"{proxy.url}/jobs")
        time.sleep(0.5)
        assert client.get(f"{proxy.url}/jobs").status_code == 200
