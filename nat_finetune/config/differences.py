"""Two configs compared by what they mean: bases merged, variables expanded, defaults filled in, spelling and order ignored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, SecretStr

from nat_finetune.config.component import ComponentConfig
from nat_finetune.config.nodes import dotted
from nat_finetune.config.resolved import REDACTED, is_secret
from nat_finetune.config.schema import RunConfig

Path = tuple[str | int, ...]


class Change(StrEnum):
    """What became of a value."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that the two configs do not have in common."""

    key: str
    change: Change
    before: Any = None
    after: Any = None

    def __str__(self) -> str:
        match self.change:
            case Change.ADDED:
                return f"+ {self.key}: {self.after}"
            case Change.REMOVED:
                return f"- {self.key}: {self.before}"
            case Change.CHANGED:
                return f"~ {self.key}: {self.before} → {self.after}"


def differences(before: RunConfig, after: RunConfig) -> list[Difference]:
    """Every value that is not the same in both, in the order of the schema; secrets are compared and never shown.

    Returns:
        Nothing where the two mean the same. A whole entry that only one of them has is one difference.
    """
    return compare(plain(before), plain(after))


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """The same of two plain mappings."""
    return list(_compare((), before, after))


def _compare(path: Path, before: Any, after: Any) -> Iterator[Difference]:
    if isinstance(before, Mapping) and isinstance(after, Mapping) and before.get("_type") == after.get("_type"):
        for key in [*before, *(key for key in after if key not in before)]:
            here = (*path, key)
            if key not in after:
                yield Difference(dotted(here), Change.REMOVED, before=_shown(key, before[key]))
            elif key not in before:
                yield Difference(dotted(here), Change.ADDED, after=_shown(key, after[key]))
            else:
                yield from _compare(here, before[key], after[key])
    elif type(before) is not type(after) or before != after:
        name = str(path[-1])
        yield Difference(dotted(path), Change.CHANGED, _shown(name, before), _shown(name, after))


def plain(value: Any) -> Any:
    """A config as mappings, lists and scalars: components with their `_type`, defaults filled in, sets in order."""
    if isinstance(value, BaseModel):
        named = {"_type": value.component_name} if isinstance(value, ComponentConfig) else {}
        return named | {name: plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(item) for item in value), key=repr)
    return value


def _shown(key: str, value: Any) -> Any:
    """What a reader may see of a value."""
    if isinstance(value, Mapping):
        return {name: _shown(name, item) for name, item in value.items()}
    if isinstance(value, list):
        return [_shown(key, item) for item in value]
    if isinstance(value, SecretStr) or (isinstance(value, str) and value and is_secret(key)):
        return REDACTED
    return value if isinstance(value, int | float | bool | None) else str(value)
