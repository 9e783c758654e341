"""The items of one JSON list, read as a stream: what is in memory is one item and a block of the file."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from pathlib import Path

from nat_finetune.datasets.rows import BadRow, Counts, Row, Unreadable, as_row, decoder, opened, too_much

BLOCK = 1 << 20
"""Bytes that are read at once."""
_BOM = "\ufeff"
_CUT = 16
"""A value that the end of the text cut off makes an error in its last few characters: an escape, `true`, a delimiter."""


def json_array(path: Path, counts: Counts) -> Iterator[Row | BadRow]:
    """One JSON list of objects; what is no JSON ends it, an item that is no object does not."""
    try:
        yield from _items(_Text(_blocks(path)))
    except Unreadable as error:
        raise error.row.error(path) from None


def _items(text: _Text) -> Iterator[Row | BadRow]:
    if not text.peek():
        return
    if text.peek() != "[":
        raise Unreadable(BadRow(text.line, f"expected a list of objects, found {text.peek()!r}"))
    text.skip()
    while text.peek() != "]":
        line, value = text.line, text.value()
        try:
            row = as_row(line, value)
        except Unreadable as error:
            yield error.row
        else:
            yield row
        if text.peek() == ",":
            text.skip()
            if text.peek() == "]":
                raise text.malformed("expected another object after `,`")
        elif text.peek() != "]":
            raise text.malformed("expected `,` or `]`")
    text.skip()
    if text.peek():
        raise text.malformed("expected nothing after the list")


class _Text:
    """The text of a file from a position on, with the line and column of that position."""

    def __init__(self, blocks: Iterator[str]) -> None:
        self._blocks = blocks
        self._text = ""
        self._position = 0
        self.line, self._column = 1, 1

    def peek(self) -> str:
        """The next character that is no space, "" at the end."""
        while True:
            end = self._position
            while end < len(self._text) and self._text[end] in " \t\r\n":
                end += 1
            self._advance(end)
            if end < len(self._text):
                return self._text[end]
            if not self._more():
                return ""

    def skip(self) -> None:
        """Go behind the next character."""
        self._advance(self._position + 1)

    def value(self) -> object:
        """The JSON value that begins here; goes behind it.

        Raises:
            Unreadable: it is malformed, or goes beyond what Python reads.
        """
        while True:
            try:
                value, end = decoder(self.line).raw_decode(self._text, self._position)
            except json.JSONDecodeError as error:
                cut = error.msg.startswith("Unterminated") or error.pos >= len(self._text) - _CUT
                if cut and self._more(double=True):
                    continue
                self._advance(min(error.pos, len(self._text)))
                raise self.malformed(error.msg) from None
            except (RecursionError, ValueError) as error:
                raise too_much(self.line, error) from None
            if end == len(self._text) and self._more():
                continue  # the number 12 may be the beginning of 123
            self._advance(end)
            return value

    def malformed(self, message: str) -> Unreadable:
        """An error at this position."""
        return Unreadable(BadRow(self.line, f"malformed JSON: {message}", self._column))

    def _advance(self, end: int) -> None:
        passed = self._text.count("\n", self._position, end)
        self.line += passed
        last = self._text.rfind("\n", self._position, end)
        self._column = end - last if passed else self._column + end - self._position
        self._position = end

    def _more(self, *, double: bool = False) -> bool:
        """Add the next block, or as much as is left unread; False at the end of the file."""
        rest, wanted = self._text[self._position :], 0
        parts: list[str] = []
        while not parts or (double and wanted < len(rest)):
            block = next(self._blocks, None)
            if block is None:
                break
            parts.append(block)
            wanted += len(block)
        if not parts:
            return False
        self._text, self._position = "".join([rest, *parts]), 0
        return True


def _blocks(path: Path) -> Iterator[str]:
    incremental = codecs.getincrementaldecoder("utf-8")()
    line, column, first = 1, 1, True
    with opened(path) as file:
        while True:
            pending = incremental.getstate()[0]
            data = file.read(BLOCK)
            try:
                text = incremental.decode(data, final=not data)
            except UnicodeDecodeError as error:
                before = (pending + data)[: error.start]
                line += before.count(b"\n")
                at = len(before) - before.rfind(b"\n") if b"\n" in before else column + len(before)
                byte = (pending + data)[error.start]
                raise Unreadable(BadRow(line, f"not UTF-8: byte 0x{byte:02x}", at)) from None
            if not data and not text:
                return
            whole = (pending + data)[: len(pending) + len(data) - len(incremental.getstate()[0])]
            line += whole.count(b"\n")
            column = len(whole) - whole.rfind(b"\n") if b"\n" in whole else column + len(whole)
            if text:
                yield text.removeprefix(_BOM) if first else text
                first = False
