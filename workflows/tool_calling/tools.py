"""The tools of the household: their arguments, the values these take, and what a call to one is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

Value = str | int | float | bool | None

VALUES: Mapping[str, tuple[str | int, ...]] = {
    "room": ("kitchen", "bathroom", "bedroom", "hall", "office", "garage", "attic", "cellar"),
    "colour": ("red", "blue", "green", "white", "yellow", "pink", "orange", "purple"),
    "degrees": (16, 17, 18, 19, 20, 21, 22, 23),
    "genre": ("jazz", "rock", "folk", "blues", "soul", "pop", "techno", "opera"),
    "person": ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Ida"),
    "day": ("christmas", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"),
    "guests": (2, 3, 4, 5, 6, 7, 8, 9),
}
TOOLS: Mapping[str, tuple[str, ...]] = {
    "set_light": ("room", "colour"),
    "set_heating": ("room", "degrees"),
    "play_music": ("room", "genre"),
    "book_table": ("day", "guests"),
    "remind": ("person", "day"),
    "call_person": ("person",),
    "get_weather": ("day",),
}
"""Tool to the names of its arguments."""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool and its arguments."""

    name: str
    arguments: Mapping[str, Any]

    @classmethod
    def from_json(cls, text: str) -> Call:
        """Read what `to_json` wrote.

        Raises:
            ValueError: it is no such text.
        """
        read = json.loads(text)
        if not isinstance(read, dict) or not isinstance(read.get("name"), str) or not isinstance(read.get("arguments"), dict):
            raise ValueError(f"expected a JSON object with a name and arguments, found {text!r}")  # noqa: TRY004
        return cls(read["name"], read["arguments"])

    def to_json(self) -> str:
        """One line, the keys in the order of the format."""
        return json.dumps({"name": self.name, "arguments": dict(self.arguments)})


def problem_with(call: Call) -> str | None:
    """Why the household can't carry the call out; None where it can."""
    if call.name not in TOOLS:
        return f"there is no tool {call.name!r}"
    wanted = TOOLS[call.name]
    if set(call.arguments) != set(wanted):
        return f"{call.name} takes {', '.join(wanted)}, found {', '.join(call.arguments) or 'nothing'}"
    wrong = [name for name in wanted if not any(same_value(call.arguments[name], value) for value in VALUES[name])]
    return f"{wrong[0]} can't be {call.arguments[wrong[0]]!r}" if wrong else None


def same_value(one: Any, other: Any) -> bool:
    """Equal, and of one type: 1 is neither "1" nor true."""
    return type(one) is type(other) and bool(one == other)


def all_calls() -> Iterator[Call]:
    """Every call that the household can carry out."""
    for name, arguments in TOOLS.items():
        for values in product(*(VALUES[argument] for argument in arguments)):
            yield Call(name, dict(zip(arguments, values, strict=True)))
