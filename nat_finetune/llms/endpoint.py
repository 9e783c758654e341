"""One POST to an HTTP endpoint: a deadline for the whole request, retries with backoff, and errors that name what happened."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from random import Random
from typing import Any

import httpx

from nat_finetune.errors import BackendError
from nat_finetune.llms.completions import snippet

FIRST_WAIT, LONGEST_WAIT = 0.5, 8.0
"""Seconds between attempts where the server does not say."""
LONGEST_RETRY_AFTER = 60.0
"""Seconds. A server that asks for a longer wait is not waited for."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """What is tried again, and how often."""

    connection: int
    """Further attempts after no connection, a dropped one or the deadline."""
    answer: int
    """Further attempts after an answer that says to try again."""
    statuses: frozenset[int]
    """Statuses that say so."""
    texts: tuple[str, ...]
    """Words that say so in the body of an error answer, or as its status."""

    def again(self, status: int, body: str) -> bool:
        """Whether this error answer is worth another attempt."""
        words = (rf"(?<!\w){re.escape(text)}(?!\w)" for text in self.texts)
        return status in self.statuses or any(re.search(word, f"{status} {body}", re.IGNORECASE) for word in words)


@dataclass(frozen=True, slots=True)
class _Failure:
    """An attempt that failed: what to say, and how long to wait before another (None: there is none)."""

    message: str
    wait: float | None


class Endpoint:
    """A URL that takes JSON and gives text."""

    def __init__(
        self,
        url: str,
        *,
        key: str | None,
        timeout: float,
        retry: RetryPolicy,
        verify_ssl: bool,
        jitter: Random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.url = str(httpx.URL(url).copy_with(username=None, password=None, query=None))
        """Without credentials: what messages show."""
        self._target = url
        self.key = key
        self._timeout = timeout
        self._retry = retry
        self._jitter = jitter
        self._sleep = sleep
        self._client = httpx.AsyncClient(
            verify=verify_ssl,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(timeout, connect=min(timeout, 15.0), pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
        )

    async def post(self, body: Mapping[str, Any]) -> str:
        """The body of a 2xx answer.

        Raises:
            BackendError: it failed for good; names the URL, the status and the beginning of the answer, never the key.
        """
        left = {"connection": self._retry.connection, "answer": self._retry.answer}
        attempts = 0
        while True:
            attempts += 1
            try:
                async with asyncio.timeout(self._timeout):
                    response = await self._client.post(self._target, json=body)
            except TimeoutError:
                kind, failure = "connection", _Failure(f"gave no answer in {self._timeout:g} s", 0.0)
            except httpx.RequestError as error:
                kind, failure = "connection", _Failure(f"could not be reached: {type(error).__name__}: {error}", 0.0)
            else:
                if response.is_success:
                    return response.text
                kind, failure = "answer", self._refused(response)
            if failure.wait is None or left[kind] == 0:
                tries = f" (after {attempts} attempts)" if attempts > 1 else ""
                raise BackendError(f"{self.url} {failure.message}{tries}")
            left[kind] -= 1
            await self._sleep(max(failure.wait, self._backoff(attempts)))

    async def close(self) -> None:
        """Drop the connections."""
        await self._client.aclose()

    def _refused(self, response: httpx.Response) -> _Failure:
        said = f"answered {response.status_code} {response.reason_phrase}".rstrip() + f": {snippet(response.text, self.key)}"
        if not self._retry.again(response.status_code, response.text):
            return _Failure(said, None)
        wait = _retry_after(response.headers)
        if wait > LONGEST_RETRY_AFTER:
            return _Failure(
                f"{said} (it asks to wait {wait:.0f} s, more than the {LONGEST_RETRY_AFTER:g} s that are waited)", None
            )
        return _Failure(said, wait)

    def _backoff(self, attempts: int) -> float:
        """Seconds: doubled each time, and up to a quarter less, so that many callers don't come back at once."""
        longest = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(attempts - 1, 10))
        return longest * (1.0 - 0.25 * self._jitter.random())


def _retry_after(headers: httpx.Headers) -> float:
    """Seconds that the server asks to wait, 0 where it does not say."""
    written = headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d+(\.\d+)?", written):
        return float(written)
    try:
        return max(0.0, parsedate_to_datetime(written).timestamp() - time.time())
    except ValueError:
        return 0.0
