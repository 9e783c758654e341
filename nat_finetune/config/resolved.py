"""A resolved config as YAML: every default written out, every input path absolute, no secret in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import yaml
from pydantic import BaseModel, SecretStr

from nat_finetune.config.component import ComponentConfig
from nat_finetune.config.nodes import Node
from nat_finetune.config.schema import RunConfig

REDACTED = "**********"

_SECRET_KEY = re.compile(r"(?:^|_)(?:api_?key|token|secret|password|passwd|credentials?|authorization)$", re.IGNORECASE)


def to_yaml(config: RunConfig, tree: Node | None = None) -> str:
    """The config as YAML that loads back to an equal one.

    A secret stays as it was written where that is `${VAR}` (known from `tree`), and is `**********` elsewhere.
    """
    data = _plain(config, tree, secret=False)
    text: str = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)
    return text


def _plain(value: Any, node: Node | None, *, secret: bool) -> Any:
    if isinstance(value, BaseModel):
        named = {"_type": value.component_name} if isinstance(value, ComponentConfig) and value.component_name else {}
        fields = {name: getattr(value, name) for name in type(value).model_fields}
        return named | _entries(fields, node)
    if isinstance(value, Mapping):
        return _entries(value, node)
    if isinstance(value, list | tuple | set | frozenset):
        items = node.items if node is not None else []
        ordered = value if isinstance(value, list | tuple) else sorted(value, key=repr)
        below = [items[index] if index < len(items) else None for index in range(len(ordered))]
        return [_plain(item, child, secret=secret) for item, child in zip(ordered, below, strict=True)]
    if isinstance(value, SecretStr) or (secret and isinstance(value, str) and value):
        written = node.written if node is not None and node.expanded else None
        return written if written is not None and _is_only_variables(written) else REDACTED
    if isinstance(value, PurePath):
        return str(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _entries(values: Mapping[str, Any], node: Node | None) -> dict[str, Any]:
    entries = node.mapping if node is not None else {}
    return {
        key: _plain(value, entries.get(key), secret=_SECRET_KEY.search(str(key)) is not None) for key, value in values.items()
    }


def _is_only_variables(written: str) -> bool:
    """Whether a text is `${VAR}` and nothing else; `${VAR:-default}` may hold a secret itself."""
    return re.fullmatch(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}", written) is not None
