"""HTTP/1.1 messages as bytes: read whole, changed, written again. Just as much as the fault proxy needs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

_NO_BODY = frozenset({204, 304})


@dataclass(frozen=True, slots=True)
class Message:
    """A request or an answer."""

    first: str
    """Request or status line."""
    headers: Mapping[str, str]
    """Names in lower case; of a name that comes twice, both values in one."""
    body: bytes

    def encoded(self) -> bytes:
        """Its bytes."""
        lines = [self.first, *(f"{name}: {value}" for name, value in self.headers.items()), "", ""]
        return "\r\n".join(lines).encode("latin-1") + self.body

    def sized(self) -> Message:
        """With the length of the body in a header, not in chunks."""
        kept = {name: value for name, value in self.headers.items() if name != "transfer-encoding"}
        return replace(self, headers={**kept, "content-length": str(len(self.body)), "connection": "close"})

    def closing(self) -> Message:
        """With the wish that the connection is closed afterwards; the body by its length."""
        needed = self.body or "content-length" in self.headers or "transfer-encoding" in self.headers
        return self.sized() if needed else replace(self, headers={**self.headers, "connection": "close"})

    def with_body(self, body: bytes) -> Message:
        """With another body, and its length."""
        return replace(self, body=body).sized()


async def read_request(reader: asyncio.StreamReader) -> Message | None:
    """The next request; None where the client hangs up before one.

    Raises:
        IncompleteReadError: it hangs up in the middle of one.
    """
    try:
        first, headers = await _head(reader)
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    return Message(first, headers, await _body(reader, headers, to_end=False))


async def read_response(reader: asyncio.StreamReader, *, to_head: bool = False) -> Message:
    """An answer, whole.

    Raises:
        IncompleteReadError: the server hangs up in the middle of it.
    """
    first, headers = await _head(reader)
    empty = to_head or int(first.split(" ")[1]) in _NO_BODY
    return Message(first, headers, b"" if empty else await _body(reader, headers, to_end=True))


async def _head(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]]:
    text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = text.rstrip("\r\n").split("\r\n")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        key = name.strip().lower()
        headers[key] = f"{headers[key]}, {value.strip()}" if key in headers else value.strip()
    return first, headers


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str], *, to_end: bool) -> bytes:
    if "chunked" in headers.get("transfer-encoding", ""):
        return await _chunks(reader)
    if "content-length" in headers:
        return await reader.readexactly(int(headers["content-length"]))
    return await reader.read(-1) if to_end else b""


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    while await reader.readuntil(b"\r\n") != b"\r\n":  # trailers
        pass
    return body
