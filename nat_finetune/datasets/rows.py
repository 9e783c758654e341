"""Rows of a JSONL, JSON or CSV file as they are written, each with its line: no type is guessed, nothing is dropped silently.

`"007"` stays a text and 7 a number; every cell of a CSV file is a text. Files are UTF-8, with or without a byte-order mark.
A row that can't be read is given as a `BadRow`, and reading goes on where the next row can be found; where it can't, or where
the file as a whole is wrong, a DataError ends it.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from nat_finetune.errors import DataError


@dataclass(frozen=True, slots=True)
class Row:
    """One record and the line on which it begins, counted from 1."""

    line: int
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that can't be read, and why."""

    line: int
    reason: str
    column: int | None = None

    def error(self, path: Path) -> DataError:
        """The error that names its place."""
        place = ":".join(str(part) for part in (path, self.line, self.column) if part is not None)
        return DataError(f"{place}: {self.reason}")


class Unreadable(Exception):
    """Carries a BadRow out of a decoder."""

    def __init__(self, row: BadRow) -> None:
        super().__init__(row.reason)
        self.row = row


@dataclass(slots=True)
class Counts:
    """What a reader met on its way; complete once the file has been read to its end."""

    rows: int = 0
    blank_lines: int = 0
    filtered: int = 0
    """Rows that the config's filter left out."""


Reader = Callable[[Path, Counts], Iterator[Row | BadRow]]

_BOM = "\ufeff"
DEEPEST = 100
"""Levels of lists and objects in a row."""


def jsonl(path: Path, counts: Counts) -> Iterator[Row | BadRow]:
    """One JSON object a line; read as a stream."""
    for line, data in _lines(path):
        try:
            text = _text(line, data)
            if not text.strip():
                counts.blank_lines += 1
                continue
            row = as_row(line, _parse(line, text.rstrip("\r\n")))
        except Unreadable as error:
            yield error.row
        else:
            yield row


def comma_separated(path: Path, counts: Counts) -> Iterator[Row | BadRow]:
    """CSV with a header; read as a stream. A cell is a text, an empty one too."""
    try:
        yield from _cells(path, counts)
    except Unreadable as error:
        raise error.row.error(path) from None


def _cells(path: Path, counts: Counts) -> Iterator[Row | BadRow]:
    reader = csv.reader((_text(line, data) for line, data in _lines(path)), strict=True)
    header: list[str] | None = None
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            hint = "; write long texts as JSONL" if "field limit" in str(error) else ""
            yield BadRow(line, f"malformed CSV: {error}{hint}")
            continue
        if cells is None:
            return
        if not cells:
            counts.blank_lines += 1
        elif header is None:
            header = cells
            twice = sorted({name for name in header if header.count(name) > 1})
            if twice:
                raise Unreadable(BadRow(line, f"the header names a column twice: {', '.join(twice)}"))
        elif len(cells) != len(header):
            yield BadRow(line, f"{len(cells)} cells, the header has {len(header)} ({', '.join(header)})")
        else:
            yield Row(line, dict(zip(header, cells, strict=True)))


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A file to read bytes from.

    Raises:
        DataError: it is not there or can't be read.
    """
    try:
        with path.open("rb") as file:
            yield file
    except FileNotFoundError:
        raise DataError(f"there is no file {path}; paths are relative to the config file that names them") from None
    except IsADirectoryError:
        raise DataError(f"{path} is a folder, expected a file") from None
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}") from None


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with opened(path) as file:
        yield from enumerate(file, start=1)


def _text(line: int, data: bytes) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unreadable(BadRow(line, f"not UTF-8: byte 0x{data[error.start]:02x}", error.start + 1)) from None
    return text.removeprefix(_BOM) if line == 1 else text


def _parse(line: int, text: str) -> Any:
    try:
        return decoder(line).decode(text)
    except json.JSONDecodeError as error:
        raise _malformed(line, error.colno, error.msg) from None
    except (RecursionError, ValueError) as error:
        raise too_much(line, error) from None


def decoder(line: int) -> json.JSONDecoder:
    """A JSON decoder that takes no NaN, which is no JSON, and no key that stands twice, of which one value would be lost."""

    def constant(name: str) -> Any:
        raise Unreadable(BadRow(line, f"{name} is not JSON; write null where a value is unknown"))

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in found]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise Unreadable(BadRow(line, f"a key stands twice: {', '.join(twice)}"))
        return dict(found)

    return json.JSONDecoder(parse_constant=constant, object_pairs_hook=pairs)


def as_row(line: int, value: Any) -> Row:
    """A JSON value as a row.

    Raises:
        Unreadable: it is no object, or holds what is no text.
    """
    if not isinstance(value, dict):
        found = f"expected an object with the columns of one example, found {type(value).__name__}"
        raise Unreadable(BadRow(line, found))
    try:
        text = _is_text(value, DEEPEST)
    except RecursionError as error:
        raise too_much(line, error) from None
    if not text:
        raise Unreadable(BadRow(line, "holds half of a surrogate pair (\\ud800 to \\udfff), which is no character"))
    return Row(line, value)


def _is_text(value: Any, levels: int) -> bool:
    """Whether all texts in a JSON value are ones that can be written again: JSON can spell what UTF-8 can't hold.

    Raises:
        RecursionError: it has more levels; whoever copies or writes it later would run out of stack, with no line to name.
    """
    if levels < 0:
        raise RecursionError
    if isinstance(value, str):
        return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, dict):
        return all(_is_text(key, levels) and _is_text(item, levels - 1) for key, item in value.items())
    return not isinstance(value, list) or all(_is_text(item, levels - 1) for item in value)


def too_much(line: int, error: Exception) -> Unreadable:
    """What is JSON but goes beyond what Python reads."""
    reason = (
        f"nested too deeply, more than {DEEPEST} levels"
        if isinstance(error, RecursionError)
        else "a whole number of more than 4300 digits"
    )
    return Unreadable(BadRow(line, reason))


def _malformed(line: int, column: int, message: str) -> Unreadable:
    return Unreadable(BadRow(line, f"malformed JSON: {message}", column))
