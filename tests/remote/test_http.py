"""A service's requests against a real server: what is sent again, what is not, and what messages show."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from nat_finetune.errors import ServiceError
from nat_finetune.remote.http import Service
from tests.fixtures.endpoint import Answer, endpoint_server

TOKEN = "hf_0123456789secret"
FINE = Answer({"id": "a"})
BROKEN = Answer({"error": "no capacity"}, "503 Service Unavailable")


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
async def service():
    made = []

    def make(url, **given):
        given = {"headers": {"Authorization": f"Bearer {TOKEN}"}, "secrets": [SecretStr(TOKEN)], "sleep": no_wait, **given}
        made.append(Service("store", url, **given))
        return made[-1]

    yield make
    for each in made:
        await each.close()


async def no_wait(seconds):
    pass


@pytest.mark.parametrize("trouble", [BROKEN, Answer(drop=True), Answer({"fine": True}, cut=3), Answer('{"id": ')])
async def test_a_get_waits_trouble_out(service, trouble):
    async with endpoint_server(trouble, trouble, FINE) as server:
        assert await service(server.url).post("jobs", json={}, retry=True) == {"id": "a"}
    assert len(server.asked) == 3


@pytest.mark.parametrize("trouble", [BROKEN, Answer(drop=True), Answer({"fine": True}, cut=3), Answer('{"id": ')])
async def test_a_post_that_may_have_arrived_is_not_sent_again(service, trouble):
    async with endpoint_server(trouble, FINE) as server:
        with pytest.raises(ServiceError) as caught:
            await service(server.url).post("jobs", json={"a": 1})
    assert len(server.asked) == 1
    assert caught.value.transient
    assert str(caught.value).startswith(f"store: POST {server.url}/jobs ")


async def test_what_was_not_begun_is_sent_again_whatever_it_does(service):
    busy = Answer({"error": "busy"}, "429 Too Many Requests")
    async with endpoint_server(busy, FINE) as server:
        assert await service(server.url).post("jobs", json={"a": 1}) == {"id": "a"}
    assert len(server.asked) == 2
    async with endpoint_server(busy, busy, Answer('{"loss": 1}\n{"loss": 0.5}\n')) as server:
        lines = [line async for line in service(server.url).stream_lines("POST", "train", json={})]
    assert (lines, len(server.asked)) == ([{"loss": 1}, {"loss": 0.5}], 3)
    async with endpoint_server(busy) as server:
        with pytest.raises(ServiceError, match="answered 429 Too Many Requests"):
            await anext(service(server.url, retries=2).stream_lines("POST", "train", json={}))
    assert len(server.asked) == 3


@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "application/octet-stream"])
async def test_a_page_of_a_proxy_is_no_answer(service, kind):
    login = Answer("<!DOCTYPE html><html><title>Sign in</title></html>", headers={"content-type": kind})
    async with endpoint_server(login) as server:
        with pytest.raises(
            ServiceError, match=r"POST http://.*/jobs answered 200 with an HTML page.*Sign in.*login\?"
        ) as caught:
            await service(server.url).post("jobs", json={}, retry=True)
    assert len(server.asked) == 1
    assert not caught.value.transient


async def test_a_post_that_was_not_sent_is_tried_again(service):
    waits = []

    async def note(seconds):
        waits.append(seconds)

    async with endpoint_server(FINE) as server:
        url = server.url
    with pytest.raises(ServiceError, match=r"could not be reached: ConnectError.*\(after 3 attempts\)"):
        await service(url, retries=2, sleep=note).post("jobs", json={})
    assert len(waits) == 2


async def test_a_tolerated_status_is_an_answer(service):
    async with endpoint_server(Answer({"detail": "exists"}, "409 Conflict")) as server:
        answer = await service(server.url).request("POST", "ns", retry=True, tolerate={409}, json={})
    assert (answer.status, answer.data) == (409, {"detail": "exists"})
    assert len(server.asked) == 1


async def test_an_error_shows_status_and_body_but_no_secret(service):
    refusing = Answer({"error": f"bad token {TOKEN}", "more": "x" * 400}, "401 Unauthorized")
    async with endpoint_server(refusing) as server:
        with pytest.raises(ServiceError) as caught:
            await service(server.url).get("jobs?token=hunter2")
    message = str(caught.value)
    assert caught.value.status == 401
    assert not caught.value.transient
    assert "401 Unauthorized" in message
    assert "bad token [key]" in message
    assert TOKEN not in message + caught.value.body
    assert "hunter2" not in message
    assert len(message) < 500


async def test_another_origin_gets_no_header_of_ours(service):
    async with endpoint_server(FINE) as server, endpoint_server(FINE) as other:
        store = service(server.url)
        await store.put(f"{other.url}/upload", json={})
        await store.put(f"{server.url}/upload", json={})
    assert "authorization" not in other.asked[0].headers
    assert server.asked[0].headers["authorization"] == f"Bearer {TOKEN}"


async def test_lines_come_one_by_one(service):
    async with endpoint_server(Answer('{"loss": 1}\n\n{"loss": 0.5}\n', headers={"content-type": "x"})) as server:
        lines = [line async for line in service(server.url).stream_lines("POST", "train", json={})]
    assert lines == [{"loss": 1}, {"loss": 0.5}]


@pytest.mark.parametrize(("sent", "cut"), [('{"loss": 1}\n{"loss": 0.5}\n', 15), ('{"loss": 1}\n{"los', None)])
async def test_a_stream_that_breaks_off_is_an_error(service, sent, cut):
    async with endpoint_server(Answer(sent, cut=cut)) as server:
        lines = service(server.url).stream_lines("POST", "train", json={})
        assert await anext(lines) == {"loss": 1}
        with pytest.raises(ServiceError, match="broke off"):
            await anext(lines)


async def test_json_that_is_too_deep_to_read(service):
    async with endpoint_server(Answer("[" * 200_000)) as server:
        with pytest.raises(ServiceError, match="can't be read"):
            await service(server.url).get("x", retry=False)
        with pytest.raises(ServiceError, match="broke off"):
            await anext(service(server.url).stream_lines("POST", "x", json={}))


async def test_a_refused_stream(service):
    async with endpoint_server(Answer({"detail": TOKEN}, "500 Internal Server Error")) as server:
        with pytest.raises(ServiceError, match="500") as caught:
            await anext(service(server.url).stream_lines("POST", "train", json={}))
    assert caught.value.transient
    assert TOKEN not in str(caught.value)
