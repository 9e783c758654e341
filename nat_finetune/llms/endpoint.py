"""One POST to a chat endpoint, sent as `nat_finetune.remote.sending` sends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Any

from nat_finetune.remote.sending import RetryPolicy, Sender, shown


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
        self._retry = retry
        self._sender = Sender(timeout=timeout, verify=verify_ssl, jitter=jitter, sleep=sleep)
        self.move(url, key)

    def move(self, url: str, key: str | None) -> None:
        """Post there, with that key, from now on."""
        self.url = shown(url)
        """Without credentials: what messages show."""
        self.key = key
        self.target = url
        """As it was given."""

    async def post(self, body: Mapping[str, Any]) -> str:
        """The body of a 2xx answer.

        Raises:
            ServiceError: it failed for good; names the URL, the status and the beginning of the answer, never the key.
        """
        return await self._sender.send(
            "POST",
            self.target,
            label=self.url,
            retry=self._retry,
            read=lambda response: response.text,
            secrets=[self.key],
            headers={"Authorization": f"Bearer {self.key}"} if self.key else {},
            json=body,
        )

    async def close(self) -> None:
        """Drop the connections."""
        await self._sender.close()
