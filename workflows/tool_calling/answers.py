"""What an answer calls, and whether it is written as it must be: two questions, kept apart because both are rewarded.

The format is one call between tags, white space free, with a thought before it or without:

    <think> ... </think> <call> {"name": "set_light", "arguments": {"room": "hall", "colour": "red"}} </call>

Whether that is kept is strict: these tags once each, these two keys in this order and once, nothing before, between or after.
What is called is read leniently, so that a good call in bad form still says what it says: the first JSON object anywhere in the
text with a `name` (or `tool`) is the call, its `arguments` (or `parameters`) are the arguments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from nat_finetune_workflows.tool_calling.tools import Call

_FORMAT = re.compile(r"\s*(?:<think>[^<>]*</think>\s*)?<call>\s*(\{.*\})\s*</call>\s*", re.DOTALL)
_NAMES, _ARGUMENTS = ("name", "tool"), ("arguments", "parameters")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys stand once each."""
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key stands twice")
    return dict(pairs)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_constant)


def read_call(text: str) -> Call | None:
    """What the answer calls, however it is written; None where it calls nothing."""
    return next(_calls(text), None)


def is_well_formed(text: str) -> bool:
    """Whether the format is kept to the letter, white space apart."""
    found = _FORMAT.fullmatch(text)
    read = _object(found[1], 0) if found else None
    if found is None or read is None:
        return False
    value, end = read
    if end != len(found[1]) or list(value) != ["name", "arguments"] or not isinstance(value["name"], str):
        return False
    arguments = value["arguments"]
    return isinstance(arguments, dict) and not any(isinstance(each, dict | list) for each in arguments.values())


def canonical_text(call: Call) -> str:
    """The call in the format, without a thought, each word apart: for the shipped policy one token a word."""
    arguments = " , ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in call.arguments.items())
    return f'<call> {{"name": {json.dumps(call.name)} , "arguments": {{ {arguments} }} }} </call>'


def _calls(text: str) -> Iterator[Call]:
    for match in re.finditer(r"\{", text):
        read = _object(text, match.start())
        if read is None:
            continue
        name = next((read[0][key] for key in _NAMES if isinstance(read[0].get(key), str)), None)
        if name is not None:
            yield Call(name, next((read[0][key] for key in _ARGUMENTS if isinstance(read[0].get(key), dict)), {}))


def _object(text: str, start: int) -> tuple[dict[str, Any], int] | None:
    """The JSON object that begins at `start`, and where it ends; None where there is none."""
    try:
        value, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):  # no JSON; or nested deeper than Python reads
        return None
    return value, end
