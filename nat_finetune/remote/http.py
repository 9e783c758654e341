"""A service with a JSON API, as adapters talk to it: requests that are retried only where that is safe."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import httpx
from pydantic import SecretStr

from nat_finetune.errors import ServiceError
from nat_finetune.remote.secrets import redact, revealed, snippet
from nat_finetune.remote.sending import PASSING, UNBEGUN, NotTheService, RetryPolicy, Sender, Unreadable, shown

__all__ = ["Answer", "Service", "redact"]

SUCCESS = frozenset(range(200, 300))


@dataclass(frozen=True, slots=True)
class Answer:
    """What a service answered."""

    status: int
    data: Any
    """Parsed JSON; bytes where the answer is something else; None where it is empty."""
    headers: Mapping[str, str]


class Service:
    """One base URL. `secrets` are taken out of every message; a key for `Authorization` goes into `headers`.

    A request with `retry=True` is tried again after dropped connections, broken answers and 408, 425, 429 and 5xx, honouring
    Retry-After; without it only where nothing was begun: no connection came about, or 425 or 429 was answered. GET, HEAD, PUT
    and DELETE are retried unless told otherwise; POST and PATCH are not.
    """

    def __init__(
        self,
        name: str,
        base_url: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        secrets: Iterable[SecretStr | str | None] = (),
        verify: bool = True,
        retries: int = 4,
        seed: int = 0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.name = name
        self.base_url = base_url.rstrip("/")
        self._origin = _origin(self.base_url)
        self._headers = dict(headers or {})
        keys = [value.partition(" ")[2] or value for key, value in self._headers.items() if key.lower() in _SECRET_HEADERS]
        self._secrets = revealed([*secrets, *keys])
        self._retries = retries
        self._timeout = timeout
        self._sender = Sender(timeout=timeout, verify=verify, jitter=Random(seed), sleep=sleep)

    async def get(self, path: str, *, retry: bool = True, **asked: Any) -> Any:
        """As `request`; the answer's data."""
        return (await self.request("GET", path, retry=retry, **asked)).data

    async def post(self, path: str, *, retry: bool = False, **asked: Any) -> Any:
        """As `request`; `retry=True` only where posting twice is the same as once."""
        return (await self.request("POST", path, retry=retry, **asked)).data

    async def put(self, path: str, *, retry: bool = True, **asked: Any) -> Any:
        """As `request`."""
        return (await self.request("PUT", path, retry=retry, **asked)).data

    async def patch(self, path: str, *, retry: bool = False, **asked: Any) -> Any:
        """As `request`."""
        return (await self.request("PATCH", path, retry=retry, **asked)).data

    async def delete(self, path: str, *, retry: bool = True, **asked: Any) -> Any:
        """As `request`."""
        return (await self.request("DELETE", path, retry=retry, **asked)).data

    async def request(
        self,
        method: str,
        path: str,
        *,
        retry: bool,
        expect: Iterable[int] = SUCCESS,
        tolerate: Iterable[int] = (),
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        **content: Any,
    ) -> Answer:
        """One request.

        Args:
            method: GET, POST, ...
            path: below the base URL, or a whole URL (that gets no header of this service where it is of another origin).
            retry: whether sending it twice is safe.
            expect: statuses of a success.
            tolerate: further statuses that are answers, not errors, such as 409 for what exists already.
            headers: beside those of the service.
            timeout: seconds for one attempt, in place of the service's.
            **content: httpx's `json`, `content`, `data`, `files`, `params`.

        Raises:
            ServiceError: it failed for good; names service, method, URL, status and the first 300 characters of the body.
        """
        url, sent = self._address(path, headers)
        good = frozenset(expect) | frozenset(tolerate)
        statuses = (PASSING if retry else UNBEGUN) - good
        policy = RetryPolicy(self._retries if retry else 0, self._retries, statuses, unsent=self._retries)
        return await self._sender.send(
            method,
            url,
            label=self._label(method, url),
            retry=policy,
            read=_read,
            accept=good.__contains__,
            secrets=self._secrets,
            timeout=timeout,
            headers=sent,
            **content,
        )

    async def stream_lines(
        self,
        method: str,
        path: str,
        *,
        expect: Iterable[int] = SUCCESS,
        headers: Mapping[str, str] | None = None,
        idle_timeout: float | None = None,
        **content: Any,
    ) -> AsyncIterator[Any]:
        """The JSON values of an answer of lines (NDJSON), each as it comes; sent again only after 425 or 429.

        Args:
            method: GET or POST.
            path: as for `request`.
            expect: statuses of a success.
            headers: beside those of the service.
            idle_timeout: seconds without a byte before the stream is given up; None: as long as it takes.
            **content: httpx's.

        Raises:
            ServiceError: refused, or broken off: also where the last line is no whole JSON value.
        """
        url, sent = self._address(path, headers)
        label, limits = self._label(method, url), httpx.Timeout(self._timeout, read=idle_timeout, connect=15.0, pool=None)
        client, good, attempts = self._sender.client, frozenset(expect), 0
        while True:
            attempts += 1
            async with self._told(label), client.stream(method, url, headers=sent, timeout=limits, **content) as response:
                if response.status_code in good:
                    async for line in response.aiter_lines():
                        if line.strip():
                            yield self._parsed(line, label)
                    return
                error = self._refusal(label, response, await response.aread())
            final = response.status_code not in UNBEGUN or attempts > self._retries
            if final or not await self._sender.pause(attempts, response.headers):
                raise error

    async def close(self) -> None:
        """Drop the connections."""
        await self._sender.close()

    def redacted(self, text: str) -> str:
        """A text without this service's secrets."""
        return redact(text, self._secrets)

    def _address(self, path: str, headers: Mapping[str, str] | None) -> tuple[str, dict[str, str]]:
        whole = path.startswith(("http://", "https://"))
        url = path if whole else f"{self.base_url}/{path.lstrip('/')}"
        own = self._headers if not whole or _origin(path) == self._origin else {}
        return url, {**own, **(headers or {})}

    def _label(self, method: str, url: str) -> str:
        return f"{self.name}: {method} {shown(url)}"

    def _refusal(self, label: str, response: httpx.Response, content: bytes) -> ServiceError:
        status, body = response.status_code, content.decode(errors="replace")
        said = f"{label} answered {status} {response.reason_phrase}: {snippet(body, self._secrets)}"
        return ServiceError(said, status=status, body=redact(body, self._secrets), transient=status in PASSING)

    def _parsed(self, line: str, label: str) -> Any:
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            raise ServiceError(f"{label}: the stream broke off in {snippet(line, self._secrets)!r}", transient=True) from None

    @asynccontextmanager
    async def _told(self, label: str) -> AsyncIterator[None]:
        try:
            yield
        except httpx.RequestError as error:
            message = redact(f"{label}: the stream broke off: {type(error).__name__}: {error}", self._secrets)
            raise ServiceError(message, transient=True) from error


_SECRET_HEADERS: Sequence[str] = ("authorization", "x-api-key", "api-key", "wandb-api-key")


def _origin(url: str) -> tuple[str, str, int | None]:
    parsed = httpx.URL(url)
    return parsed.scheme, parsed.host, parsed.port


_PAGE = (b"<!doctype", b"<html")


def _read(response: httpx.Response) -> Answer:
    headers = dict(response.headers)
    if not response.content:
        return Answer(response.status_code, None, headers)
    kind = response.headers.get("content-type", "")
    if response.is_success and ("text/html" in kind or response.content.lstrip()[:9].lower().startswith(_PAGE)):
        hint = "is that the service's address, or has a proxy answered with a page of its own, such as a login?"
        raise NotTheService(f"an HTML page, expected JSON: {snippet(response.text, length=120)} ({hint})")
    if "json" not in kind or "ndjson" in kind:
        return Answer(response.status_code, response.content, headers)
    try:
        return Answer(response.status_code, json.loads(response.content), headers)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{error} in {snippet(response.text)}") from None
