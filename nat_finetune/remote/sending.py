"""One request to an HTTP server: a deadline for the whole of it, retries with backoff, and errors that name what happened."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from random import Random
from typing import Any, TypeVar

import httpx

from nat_finetune.errors import ServiceError
from nat_finetune.remote.secrets import redact, snippet

T = TypeVar("T")

FIRST_WAIT, LONGEST_WAIT = 0.5, 8.0
"""Seconds between attempts where the server does not say."""
LONGEST_RETRY_AFTER = 60.0
"""Seconds. A server that asks for a longer wait is not waited for."""
PASSING = frozenset({408, 425, 429, *range(500, 600)}) - {501, 505}
"""Statuses that may be others the next time."""
UNBEGUN = frozenset({425, 429})
"""Statuses that say that nothing was begun: sending it again is safe whatever it does."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """What is tried again, and how often."""

    connection: int
    """Further attempts after a dropped connection, the deadline, or an answer that broke off."""
    answer: int
    """Further attempts after an answer that says to try again."""
    statuses: frozenset[int] = PASSING
    """Statuses that say so."""
    texts: tuple[str, ...] = ()
    """Words that say so in the body of an error answer, or as its status."""
    unsent: int = 0
    """Further attempts where no connection came about, beyond `connection`: then nothing was sent."""

    def again(self, status: int, body: str) -> bool:
        """Whether this error answer is worth another attempt."""
        words = (rf"(?<!\w){re.escape(text)}(?!\w)" for text in self.texts)
        return status in self.statuses or any(re.search(word, f"{status} {body}", re.IGNORECASE) for word in words)


class Unreadable(ValueError):
    """Raised by a reader of answers: this one is not what it says it is."""


class NotTheService(Unreadable):
    """Raised by a reader of answers: somebody else has answered, and would again."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """An attempt that failed."""

    message: str
    kind: str
    """`unsent`, `connection` or `answer`; what is counted."""
    wait: float | None = 0.0
    """Seconds before another attempt; None: there is none."""
    status: int | None = None
    body: str = ""
    transient: bool = True


class Sender:
    """An HTTP client; messages show neither keys nor credentials."""

    def __init__(
        self,
        *,
        timeout: float,
        verify: bool,
        jitter: Random,
        headers: Mapping[str, str] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._timeout = timeout
        self._jitter = jitter
        self._sleep = sleep
        self.client = httpx.AsyncClient(
            verify=verify,
            headers=dict(headers or {}),
            timeout=httpx.Timeout(timeout, connect=min(timeout, 15.0), pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
        )

    async def send(
        self,
        method: str,
        url: str,
        *,
        label: str,
        retry: RetryPolicy,
        read: Callable[[httpx.Response], T],
        accept: Callable[[int], bool] = lambda status: 200 <= status < 300,
        secrets: Iterable[str | None] = (),
        timeout: float | None = None,
        **content: Any,
    ) -> T:
        """What `read` makes of the answer; `label` names the request in messages.

        Raises:
            ServiceError: it failed for good; names the request, the status and the beginning of the answer.
        """
        limit, left = timeout or self._timeout, {"connection": retry.connection, "answer": retry.answer, "unsent": retry.unsent}
        attempts = 0
        while True:
            attempts += 1
            got = await self._attempt(method, url, limit, retry, read, accept, tuple(secrets), content)
            if not isinstance(got, _Failure):
                return got
            kind = "connection" if got.kind == "unsent" and not left["unsent"] else got.kind
            if got.wait is None or left[kind] == 0:
                tries = f" (after {attempts} attempts)" if attempts > 1 else ""
                message = redact(f"{label} {got.message}{tries}", secrets)
                raise ServiceError(message, status=got.status, body=redact(got.body, secrets), transient=got.transient)
            left[kind] -= 1
            await self._sleep(max(got.wait, self.backoff(attempts)))

    async def pause(self, attempts: int, headers: httpx.Headers) -> bool:
        """Wait before a further attempt, at least as long as the server asks; False, at once, where that is too long."""
        asked = retry_after(headers)
        if asked > LONGEST_RETRY_AFTER:
            return False
        await self._sleep(max(asked, self.backoff(attempts)))
        return True

    async def close(self) -> None:
        """Drop the connections."""
        await self.client.aclose()

    def backoff(self, attempts: int) -> float:
        """Seconds: doubled each time, and up to a quarter less, so that many callers don't come back at once."""
        longest = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(attempts - 1, 10))
        return longest * (1.0 - 0.25 * self._jitter.random())

    async def _attempt(
        self,
        method: str,
        url: str,
        timeout: float,
        retry: RetryPolicy,
        read: Callable[[httpx.Response], T],
        accept: Callable[[int], bool],
        secrets: tuple[str | None, ...],
        content: Mapping[str, Any],
    ) -> T | _Failure:
        try:
            async with asyncio.timeout(timeout):
                response = await self.client.request(method, url, timeout=_limits(timeout), **content)
            return read(response) if accept(response.status_code) else _refused(response, retry, secrets)
        except TimeoutError:
            return _Failure(f"gave no answer in {timeout:g} s", "connection")
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            return _Failure(_unreached(error), "unsent")
        except httpx.RequestError as error:
            return _Failure(_unreached(error), "connection")
        except NotTheService as error:
            return _Failure(f"answered {response.status_code} with {error}", "answer", None, transient=False)
        except Unreadable as error:
            return _Failure(f"answered {response.status_code} with what can't be read: {error}", "connection")


def shown(url: str) -> str:
    """A URL as messages show it: without credentials and query."""
    return str(httpx.URL(url).copy_with(username=None, password=None, query=None))


def _limits(timeout: float) -> httpx.Timeout:
    return httpx.Timeout(timeout, connect=min(timeout, 15.0), pool=None)


def _unreached(error: httpx.RequestError) -> str:
    return f"could not be reached: {type(error).__name__}: {error}"


def _refused(response: httpx.Response, retry: RetryPolicy, secrets: tuple[str | None, ...]) -> _Failure:
    status, body = response.status_code, response.text
    said = f"answered {status} {response.reason_phrase}".rstrip() + f": {snippet(body, secrets)}"
    passing = status in PASSING
    if not retry.again(status, body):
        return _Failure(said, "answer", None, status, body, transient=passing)
    wait = retry_after(response.headers)
    if wait > LONGEST_RETRY_AFTER:
        said = f"{said} (it asks to wait {wait:.0f} s, more than the {LONGEST_RETRY_AFTER:g} s that are waited)"
        return _Failure(said, "answer", None, status, body, transient=passing)
    return _Failure(said, "answer", wait, status, body, transient=True)


def retry_after(headers: httpx.Headers) -> float:
    """Seconds that the server asks to wait, 0 where it does not say."""
    written = headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d+(\.\d+)?", written):
        return float(written)
    try:
        return max(0.0, parsedate_to_datetime(written).timestamp() - time.time())
    except ValueError:
        return 0.0
