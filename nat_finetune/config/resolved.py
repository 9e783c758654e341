"""A resolved config as YAML: input paths absolute, bases merged, variables expanded, no secret in it.

What the user set stands as keys, what is a default as a comment beside them: the file shows everything, and loads back to an
equal config, in which a default is still no choice of the user's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

import yaml
from pydantic import BaseModel, SecretStr

from nat_finetune.config.component import ComponentConfig
from nat_finetune.config.nodes import Node, add_plain_scalars
from nat_finetune.config.schema import RunConfig
from nat_finetune.config.shape import spellings

REDACTED = "**********"

_SECRET_KEY = re.compile(r"(?:^|[_-])(?:api[_-]?key|token|secret|password|passwd|credentials?|authorization)$", re.IGNORECASE)
_ONE_VARIABLE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-)?\}")
"""`${VAR}` and nothing else, or `${VAR:-}`; another default may be a secret itself."""


def is_secret(key: str) -> bool:
    """Whether a text under this key must not be shown."""
    return _SECRET_KEY.search(key) is not None


def to_yaml(config: RunConfig, tree: Node | None = None) -> str:
    """The config as YAML.

    A secret stays as it was written where that is `${VAR}` or `${VAR:-}` (known from `tree`), and is `**********` elsewhere.
    """
    return "\n".join(_block(config, tree, "")) + "\n"


def resolved_values(config: RunConfig, tree: Node | None = None) -> dict[str, Any]:
    """The config as plain data, defaults filled in; secrets as in `to_yaml`."""
    values: dict[str, Any] = _value("", config, tree, defaults=True)
    return values


def _block(value: BaseModel | Mapping[str, Any], node: Node | None, indent: str) -> Iterator[str]:
    """Lines of a mapping; defaults are comments after the keys that were set."""
    if isinstance(value, ComponentConfig):
        yield f"{indent}_type: {_flow(value.component_name)}"
    for key, item, child, is_set in _entries(value, node):
        if is_set and _is_block(item):
            yield f"{indent}{_flow(key)}:"
            yield from _block(item, child, indent + "  ")
        else:
            mark = "" if is_set else "# "
            yield f"{indent}{mark}{_flow(key)}: {_flow(_value(key, item, child, defaults=not is_set))}"


def _entries(value: Any, node: Node | None) -> Iterator[tuple[str, Any, Node | None, bool]]:
    """Key, value, node and whether the user set it; what was set first."""
    given = node.mapping if node is not None else {}
    if not isinstance(value, BaseModel):
        for key, item in value.items():
            yield key, item, given.get(key), True
        return
    model = type(value)
    for name in sorted(model.model_fields, key=lambda name: name not in value.model_fields_set):
        keys = spellings(model, name)
        child = next((given[key] for key in keys if key in given), None)
        yield keys[0], getattr(value, name), child, name in value.model_fields_set


def _is_block(value: Any) -> bool:
    return isinstance(value, BaseModel) or (isinstance(value, Mapping) and len(value) > 0)


def _value(key: str, value: Any, node: Node | None, *, defaults: bool) -> Any:
    """What YAML can write in a value's place; with `defaults`, of blocks inside it too."""
    if isinstance(value, SecretStr) or (isinstance(value, str | None) and is_secret(key)):
        written = node.written if node is not None else None  # also where the variable is empty: the next process may have it
        if written is not None and _ONE_VARIABLE.fullmatch(written):
            return written
        text = value.get_secret_value() if isinstance(value, SecretStr) else value
        return REDACTED if text else text
    if isinstance(value, BaseModel | Mapping):
        named = {"_type": value.component_name} if isinstance(value, ComponentConfig) else {}
        entries = [entry for entry in _entries(value, node) if entry[3] or defaults]
        return named | {name: _value(name, item, child, defaults=defaults) for name, item, child, _ in entries}
    if isinstance(value, list | tuple | set | frozenset):
        items = node.items if node is not None else []
        ordered = value if isinstance(value, list | tuple) else sorted(value, key=repr)
        pairs = zip_longest(ordered, items[: len(ordered)])
        return [_value("", item, child, defaults=defaults) for item, child in pairs]
    if isinstance(value, int | float | bool | None):
        return value
    return str(value).replace("${", "$${")


def _flow(value: Any) -> str:
    """A value on one line, in quotes where it would be read as something else."""
    text: str = yaml.dump(
        value, Dumper=_Dumper, default_flow_style=True, allow_unicode=True, width=float("inf"), sort_keys=False
    )
    return text.removesuffix("\n...\n").rstrip("\n")


class _Dumper(yaml.SafeDumper):
    """Quotes what this package's reader, too, would not read as a text."""

    yaml_implicit_resolvers = {first: [*known] for first, known in yaml.SafeDumper.yaml_implicit_resolvers.items()}  # noqa: RUF012


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if "\n" in text else None)


add_plain_scalars(_Dumper)
_Dumper.add_representer(str, _text)
