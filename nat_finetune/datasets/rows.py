"""Rows of a JSONL, JSON or CSV file as they are written, each with its line: no type is guessed, nothing is dropped silently.

`"007"` stays a text and 7 a number; every cell of a CSV file is a text. Files are UTF-8, with or without a byte-order mark.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nat_finetune.errors import DataError


@dataclass(frozen=True, slots=True)
class Row:
    """One record and the line on which it begins, counted from 1."""

    line: int
    values: dict[str, Any]


@dataclass(slots=True)
class Counts:
    """What a reader met on its way; complete once the file has been read to its end."""

    rows: int = 0
    blank_lines: int = 0
    filtered: int = 0
    """Rows that the config's filter left out."""


Reader = Callable[[Path, Counts], Iterator[Row]]

_BOM = "\ufeff"


def jsonl(path: Path, counts: Counts) -> Iterator[Row]:
    """One JSON object a line; read as a stream."""
    for line, text in _lines(path):
        if not text.strip():
            counts.blank_lines += 1
            continue
        yield _object(path, line, _parse(path, line, text.rstrip("\r\n")))


def json_array(path: Path, counts: Counts) -> Iterator[Row]:
    """One JSON list of objects."""
    text = "".join(text for _, text in _lines(path))
    position, line, counted = _skip(text, 0), 1, 0
    if position == len(text):
        return
    if text[position] != "[":
        raise DataError(f"{path}:{line}: expected a list of objects, found {text[position : position + 1]!r}")
    position = _skip(text, position + 1)
    while text[position : position + 1] != "]":
        line, counted = line + text.count("\n", counted, position), position
        try:
            value, end = _decoder(path, line).raw_decode(text, position)
        except json.JSONDecodeError as error:
            raise _malformed(path, error.lineno, error.colno, error.msg) from None
        except (RecursionError, ValueError) as error:
            raise _unreadable(path, line, error) from None
        yield _object(path, line, value)
        position = _skip(text, end)
        if text[position : position + 1] == ",":
            position = _skip(text, position + 1)
            if text[position : position + 1] == "]":
                raise _after(path, text, position, "expected another object after `,`")
        elif text[position : position + 1] != "]":
            raise _after(path, text, position, "expected `,` or `]`")
    if _skip(text, position + 1) != len(text):
        raise _after(path, text, _skip(text, position + 1), "expected nothing after the list")


def comma_separated(path: Path, counts: Counts) -> Iterator[Row]:
    """CSV with a header; read as a stream. A cell is a text, an empty one too."""
    reader = csv.reader((text for _, text in _lines(path)), strict=True)
    header: list[str] | None = None
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            hint = "; write long texts as JSONL" if "field limit" in str(error) else ""
            raise DataError(f"{path}:{line}: malformed CSV: {error}{hint}") from None
        if cells is None:
            return
        if not cells:
            counts.blank_lines += 1
        elif header is None:
            header = cells
            twice = sorted({name for name in header if header.count(name) > 1})
            if twice:
                raise DataError(f"{path}:{line}: the header names a column twice: {', '.join(twice)}")
        elif len(cells) != len(header):
            raise DataError(f"{path}:{line}: {len(cells)} cells, the header has {len(header)} ({', '.join(header)})")
        else:
            yield Row(line, dict(zip(header, cells, strict=True)))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open("rb") as file:
            for number, data in enumerate(file, start=1):
                try:
                    text = data.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise DataError(f"{path}:{number}:{error.start + 1}: not UTF-8: byte 0x{data[error.start]:02x}") from None
                yield number, text.removeprefix(_BOM) if number == 1 else text
    except FileNotFoundError:
        raise DataError(f"there is no file {path}; paths are relative to the config file that names them") from None
    except IsADirectoryError:
        raise DataError(f"{path} is a folder, expected a file") from None
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}") from None


def _parse(path: Path, line: int, text: str) -> Any:
    try:
        return _decoder(path, line).decode(text)
    except json.JSONDecodeError as error:
        raise _malformed(path, line, error.colno, error.msg) from None
    except (RecursionError, ValueError) as error:
        raise _unreadable(path, line, error) from None


def _decoder(path: Path, line: int) -> json.JSONDecoder:
    """A decoder that takes neither NaN, which is no JSON, nor a key that stands twice, of which one value would be lost."""

    def constant(name: str) -> Any:
        raise DataError(f"{path}:{line}: {name} is not JSON; write null where a value is unknown")

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in found]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DataError(f"{path}:{line}: a key stands twice: {', '.join(twice)}")
        return dict(found)

    return json.JSONDecoder(parse_constant=constant, object_pairs_hook=pairs)


def _object(path: Path, line: int, value: Any) -> Row:
    if not isinstance(value, dict):
        raise DataError(f"{path}:{line}: expected an object with the columns of one example, found {type(value).__name__}")
    if not _is_text(value):
        raise DataError(f"{path}:{line}: holds half of a surrogate pair (\\ud800 to \\udfff), which is no character")
    return Row(line, value)


def _is_text(value: Any) -> bool:
    """Whether all texts in a JSON value are ones that can be written again: JSON can spell what UTF-8 can't hold."""
    if isinstance(value, str):
        return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, dict):
        return all(_is_text(key) and _is_text(item) for key, item in value.items())
    return not isinstance(value, list) or all(map(_is_text, value))


def _skip(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _after(path: Path, text: str, position: int, message: str) -> DataError:
    line, column = text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position)
    return _malformed(path, line, column, message)


def _unreadable(path: Path, line: int, error: Exception) -> Exception:
    """What is JSON but goes beyond what Python reads; an error that says so itself stays as it is."""
    if isinstance(error, DataError):
        return error
    reason = "nested too deeply" if isinstance(error, RecursionError) else "a whole number of more than 4300 digits"
    return DataError(f"{path}:{line}: {reason}")


def _malformed(path: Path, line: int, column: int, message: str) -> DataError:
    return DataError(f"{path}:{line}:{column}: malformed JSON: {message}")
