"""Edits in the text of a YAML file, with its comments, order and quoting left as they are (ruamel.yaml)."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from nat_finetune.config.versions import Edit, Remove

WIDTH = 4096
"""Lines are not broken anew."""


def rewrite(text: str, edits: Iterable[Edit]) -> str:
    """The text after the edits; it must be YAML that was read before, with a mapping at its root."""
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = WIDTH
    document = yaml.load(text)
    for edit in edits:
        _apply(document, edit)
    written = io.StringIO()
    yaml.dump(document, written)
    return written.getvalue()


def _apply(document: CommentedMap, edit: Edit) -> None:
    *above, key = edit.path
    block = document
    for name in above:
        if not isinstance(block.get(name), CommentedMap):
            block[name] = CommentedMap()
        block = block[name]
    if isinstance(edit, Remove):
        block.pop(key, None)
    elif not above and key not in block:
        block.insert(0, key, _commented(edit.value))  # the version stands first
    else:
        _put(block, key, edit.value)


def _put(block: CommentedMap, key: str, value: Any) -> None:
    """Set a value; a mapping that is there keeps the comments of the keys that stay."""
    there = block.get(key)
    if not isinstance(there, CommentedMap) or not isinstance(value, Mapping):
        block[key] = _commented(value)
        return
    for name in [name for name in there if name not in value]:
        del there[name]
    for place, (name, item) in enumerate(value.items()):
        if name not in there:
            there.insert(place, name, _commented(item))
        elif there[name] != item:
            _put(there, name, item)


def _commented(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    made = CommentedMap({key: _commented(item) for key, item in value.items()})
    if not any(isinstance(item, Mapping) for item in value.values()) and len(value) <= 3:
        made.fa.set_flow_style()
    return made
