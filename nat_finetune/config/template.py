"""Prompt templates: texts with `{name}` in them, filled in one pass. Nothing is evaluated, nothing filled in is read again.

`{name}` stands for a value, `{name.key}` for a part of it (a key of a mapping, or a position in a list). Other braces, such as
those of JSON, stay as they are; `{{name}}` is the text `{name}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from nat_finetune.config.problems import nearest

_PLACE = re.compile(r"\{\{([a-z_]\w*(?:\.\w+)*)\}\}|\{([a-z_]\w*(?:\.\w+)*)\}")


def check_template(text: str, names: Collection[str], *, needed: Collection[str] = ()) -> str:
    """The text itself, if all its places are among `names` and those that are needed are there.

    Raises:
        ValueError: names the place and the nearest name.
    """
    found = [place.split(".")[0] for place in places(text)]
    for name in found:
        if name not in names:
            near = nearest(name, list(names))
            hint = near or f"known: {', '.join(sorted(names))}"
            raise ValueError(f"there is no {{{name}}} ({hint}); write {{{{{name}}}}} for the text {{{name}}}")
    missing = [name for name in needed if name not in found]
    if missing:
        raise ValueError(f"has no {{{missing[0]}}}: what it stands for would be left out")
    return text


def places(text: str) -> list[str]:
    """The places of a template, in order: `name` or `name.key`."""
    return [match[2] for match in _PLACE.finditer(text) if match[2]]


def fill(text: str, values: Mapping[str, Any]) -> str:
    """The template with its values; what is no text stands as JSON.

    Raises:
        KeyError: a place has no value; says what there is.
    """
    return _PLACE.sub(lambda match: f"{{{match[1]}}}" if match[1] else shown(part(values, match[2])), text)


def part(value: Any, path: str) -> Any:
    """What stands under a dotted path: keys of mappings, positions in lists.

    Raises:
        KeyError: names the step that leads nowhere, and what there is.
    """
    for step in path.split("."):
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif isinstance(value, list | tuple) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            found = (
                f"has {', '.join(map(str, value)) or 'nothing'}" if isinstance(value, Mapping) else f"is {shown(value)[:80]!r}"
            )
            raise KeyError(f"{path}: there is no {step!r} in what {found}")
    return value


def shown(value: Any) -> str:
    """A value as a text: texts as they are, others as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
