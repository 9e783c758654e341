"""What one preference record says, whatever its format: a context and completions that somebody ordered or scored.

Everything here is pure and raises DataError with the reason alone: who reads the records knows the place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nat_finetune.errors import DataError
from nat_finetune.types import Message

Messages = tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """One judged completion: the messages that follow the context."""

    messages: Messages
    score: Any
    """Higher is better; what the record holds, valid or not: `pairing` decides, and counts what it can't use."""
    index: int
    """Position in the record, from 0."""


@dataclass(frozen=True, slots=True)
class Judgment:
    """One record, understood."""

    context: str | Messages
    answers: tuple[Answer, ...]
    ranked: bool
    """The scores only order the answers: their differences mean nothing."""
    extra: Mapping[str, Any]
    """All other columns."""


def preferred(context: str | Messages, chosen: Messages, rejected: Messages, extra: Mapping[str, Any]) -> Judgment:
    """A judgment that only says which of two is better."""
    return Judgment(context, (Answer(chosen, 1.0, 0), Answer(rejected, 0.0, 1)), ranked=True, extra=extra)


def rest(values: Mapping[str, Any], *used: str) -> dict[str, Any]:
    """The columns that were not used."""
    return {name: value for name, value in values.items() if name not in used}


def column(values: Mapping[str, Any], name: str) -> Any:
    """A column that must be there.

    Raises:
        DataError: it is not, or null.
    """
    if name not in values:
        raise DataError(f"there is no {name!r}, found {', '.join(map(repr, values)) or 'nothing'}")
    if values[name] is None:
        raise DataError(f"{name!r} is null")
    return values[name]


def as_context(value: Any, name: str) -> str | Messages:
    """A context: a text, or messages.

    Raises:
        DataError: it is neither, or empty.
    """
    if isinstance(value, str):
        if not value.strip():
            raise DataError(f"{name!r} is blank: there is nothing to answer")
        return value
    return as_messages(value, name)


def as_completion(value: Any, name: str) -> Messages:
    """A completion: a text, one message or several.

    Raises:
        DataError: it is none of these, or blank.
    """
    if isinstance(value, str):
        value = {"role": "assistant", "content": value}
    found = as_messages([value] if isinstance(value, Mapping) else value, name)
    for place, message in enumerate(found, start=1):
        content = message.get("content")
        if message["role"] == "assistant" and not message.get("tool_calls") and not (content or "").strip():
            where = f"message {place} of {name!r}" if len(found) > 1 else repr(name)
            raise DataError(f"{where} is blank")
    return found


def as_messages(value: Any, name: str) -> Messages:
    """Chat messages, each with a role and a text; columns that are null (a table's missing ones) are left out.

    Raises:
        DataError: names the message and what is wrong with it.
    """
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise DataError(f"{name!r} holds {_kind(value)}, expected a text or a list of messages")
    if not value:
        raise DataError(f"{name!r} is an empty list")
    return tuple(_message(item, f"message {place} of {name!r}") for place, item in enumerate(value, start=1))


def _message(value: Any, where: str) -> Message:
    if not isinstance(value, Mapping):
        raise DataError(f"{where} is {_kind(value)}, expected an object with role and content")
    message = {key: item for key, item in value.items() if item is not None}
    role = message.get("role")
    if not isinstance(role, str) or not role:
        found = f"found {', '.join(map(repr, value)) or 'nothing'}" if "role" not in message else f"found {role!r}"
        raise DataError(f"{where} has no role, {found}")
    content = message.get("content")
    if isinstance(content, list):
        message["content"] = "".join(_part(part, where) for part in content)
    elif content is None and message.get("tool_calls"):
        message["content"] = None
    elif not isinstance(content, str):
        raise DataError(f"{where} has {_kind(content) if content is not None else 'nothing'} as content, expected a text")
    return message


def _part(part: Any, where: str) -> str:
    """The text of one content part: only texts can be trained on."""
    if isinstance(part, Mapping) and part.get("type") in ("text", "input_text", "output_text"):
        text = part.get("text")
        if isinstance(text, str):
            return text
    found = repr(part["type"]) if isinstance(part, Mapping) and "type" in part else _kind(part)
    raise DataError(f"{where} holds a content part {found}, expected parts of type 'text' only")


def number(value: Any, name: str) -> float | int:
    """A number that must be there.

    Raises:
        DataError: it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) == float("inf"):
        raise DataError(f"{name} is {value!r}, expected a number")
    return value


def items(value: Any, name: str, *, least: int) -> Sequence[Any]:
    """A list that must have some entries.

    Raises:
        DataError: it is no list, or shorter.
    """
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise DataError(f"{name!r} holds {_kind(value)}, expected a list")
    if len(value) < least:
        raise DataError(f"{name!r} has {len(value)} entr{'y' if len(value) == 1 else 'ies'}, a preference needs {least}")
    return value


def _kind(value: Any) -> str:
    """What a value is, in the words of JSON."""
    names = {str: "a text", bool: "a boolean", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return "null" if value is None else names.get(type(value), f"a {type(value).__name__}")
