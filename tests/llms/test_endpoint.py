"""Requests against a real server: deadlines, retries, waits, and what an error says and does not say."""

from __future__ import annotations

import time
from email.utils import formatdate
from random import Random

import pytest

from nat_finetune.errors import BackendError
from nat_finetune.llms.endpoint import Endpoint
from nat_finetune.remote.sending import FIRST_WAIT, LONGEST_WAIT, RetryPolicy
from tests.fixtures.endpoint import Answer, endpoint_server

KEY = "sk-very-secret-key"
RETRY = RetryPolicy(connection=2, answer=3, statuses=frozenset({429, 500, 503}), texts=("overloaded", "429"))
FINE = Answer({"fine": True})


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


class Posting:
    """An endpoint whose waits are noted, not waited for."""

    def __init__(self, url, *, timeout=5.0, retry=RETRY, key=KEY):
        self.waits = []
        self.endpoint = Endpoint(
            url, key=key, timeout=timeout, retry=retry, verify_ssl=True, jitter=Random(0), sleep=self._sleep
        )

    async def _sleep(self, seconds):
        self.waits.append(seconds)

    async def post(self):
        try:
            return await self.endpoint.post({"a": 1})
        finally:
            await self.endpoint.close()


async def fails(posting):
    with pytest.raises(BackendError) as caught:
        await posting.post()
    assert KEY not in str(caught.value)
    return str(caught.value)


async def test_an_answer():
    async with endpoint_server(FINE) as server:
        posting = Posting(f"{server.url}/chat/completions")
        assert await posting.post() == '{"fine": true}'
    assert server.asked[0].path == "/v1/chat/completions"
    assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"
    assert server.asked[0].body == {"a": 1}


async def test_without_a_key_no_header():
    async with endpoint_server(FINE) as server:
        await Posting(server.url, key=None).post()
    assert "authorization" not in server.asked[0].headers


@pytest.mark.parametrize("trouble", [Answer({}, "500 Internal Server Error"), Answer(drop=True), Answer({"fine": True}, cut=3)])
async def test_passing_trouble_is_waited_out(trouble):
    async with endpoint_server(trouble, trouble, FINE) as server:
        posting = Posting(server.url)
        assert await posting.post() == '{"fine": true}'
    assert len(server.asked) == 3
    first, second = posting.waits
    assert 0.75 * FIRST_WAIT <= first <= FIRST_WAIT
    assert 0.75 * 2 * FIRST_WAIT <= second <= 2 * FIRST_WAIT


async def test_backoff_ends_somewhere():
    async with endpoint_server(Answer({}, "500 Internal Server Error")) as server:
        posting = Posting(server.url, retry=RetryPolicy(0, 40, frozenset({500}), ()))
        await fails(posting)
    assert max(posting.waits) <= LONGEST_WAIT
    assert len(posting.waits) == 40


@pytest.mark.parametrize("written", ["7", "7.5", lambda: formatdate(time.time() + 8, usegmt=True)])
async def test_retry_after(written):
    value = written if isinstance(written, str) else written()
    async with endpoint_server(Answer({}, "429 Too Many Requests", {"Retry-After": value}), FINE) as server:
        posting = Posting(server.url)
        await posting.post()
    assert 6.0 <= posting.waits[0] <= 8.0


@pytest.mark.parametrize("written", ["soon", "", "-3", "Mon, 01 Jan 2001 00:00:00 GMT"])
async def test_a_retry_after_of_no_use_is_no_wait(written):
    async with endpoint_server(Answer({}, "429 Too Many Requests", {"Retry-After": written}), FINE) as server:
        posting = Posting(server.url)
        await posting.post()
    assert posting.waits[0] <= FIRST_WAIT


async def test_nobody_waits_an_hour():
    async with endpoint_server(Answer({"error": "quota"}, "429 Too Many Requests", {"Retry-After": "3600"})) as server:
        posting = Posting(server.url)
        message = await fails(posting)
    assert "3600 s" in message
    assert "quota" in message
    assert posting.waits == []


async def test_attempts_end_and_the_last_answer_is_shown():
    async with endpoint_server(Answer({"error": "no capacity"}, "503 Service Unavailable")) as server:
        message = await fails(Posting(server.url))
    assert len(server.asked) == 1 + RETRY.answer
    assert "503 Service Unavailable" in message
    assert "no capacity" in message
    assert "after 4 attempts" in message
    assert server.url in message


@pytest.mark.parametrize(
    ("status", "body", "again"),
    [
        ("400 Bad Request", "max_tokens: 4290 is too many", False),
        ("401 Unauthorized", "no", False),
        ("404 Not Found", "no such model", False),
        ("307 Temporary Redirect", "", False),
        ("400 Bad Request", "the server is Overloaded", True),
        ("418 I'm a teapot", "HTTP 429", True),
        ("500 Internal Server Error", "", True),
    ],
)
async def test_which_answers_are_tried_again(status, body, again):
    async with endpoint_server(Answer(body, status)) as server:
        message = await fails(Posting(server.url))
    assert len(server.asked) == (1 + RETRY.answer if again else 1)
    assert status.split()[0] in message


async def test_a_dropped_connection_ends_in_an_error():
    async with endpoint_server(Answer(drop=True)) as server:
        message = await fails(Posting(server.url))
    assert len(server.asked) == 1 + RETRY.connection
    assert "could not be reached" in message


async def test_nobody_listens():
    async with endpoint_server(FINE) as server:
        url = server.url
    posting = Posting(url)
    assert "could not be reached: ConnectError" in await fails(posting)
    assert len(posting.waits) == RETRY.connection


async def test_a_body_that_trickles_meets_the_deadline():
    """Each byte comes in time, the whole does not: a timeout between bytes would wait 5 s."""
    slow = Answer("x" * 100, seconds_per_byte=0.05)
    async with endpoint_server(slow) as server:
        began = time.monotonic()
        message = await fails(Posting(server.url, timeout=0.3, retry=RetryPolicy(1, 0, frozenset(), ())))
    assert time.monotonic() - began < 2.0
    assert "no answer in 0.3 s (after 2 attempts)" in message


async def test_the_key_is_not_repeated_from_an_answer():
    async with endpoint_server(Answer({"error": f"Incorrect API key: {KEY}"}, "401 Unauthorized")) as server:
        assert "Incorrect API key: [key]" in await fails(Posting(server.url))


async def test_credentials_in_a_url_are_not_shown():
    async with endpoint_server(Answer({}, "401 Unauthorized")) as server:
        url = server.url.replace("http://", "http://anna:hunter2@")
        assert "hunter2" not in await fails(Posting(f"{url}?token=hunter2"))


async def test_a_long_answer_is_cut_in_the_message():
    async with endpoint_server(Answer("<html>" + "x" * 5_000, "400 Bad Request")) as server:
        assert len(await fails(Posting(server.url))) < 500
