"""Is every key of a config honoured? Each is set to something else: that must be refused, or change what is made."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from nat_finetune.config.component import ComponentConfig

C = TypeVar("C", bound=ComponentConfig)
UNKNOWN = "a_key_that_nobody_knows"


def refuses_unknown_keys(config: ComponentConfig) -> Iterator[str]:
    """Whether a key that the config does not have is refused."""
    try:
        type(config)(**given(config), **{UNKNOWN: 1})
    except ValidationError:
        return
    yield f"{type(config).__name__} takes the unknown key {UNKNOWN!r}: leave pydantic's `extra` at forbid"


def given(config: ComponentConfig) -> dict[str, Any]:
    """The keys that were set, by the names under which the config takes them."""
    fields = type(config).model_fields
    return {fields[name].alias or name: getattr(config, name) for name in config.model_fields_set}


def variations(config: C) -> Iterator[tuple[str, C]]:
    """(key, the same config with another value there), for each key with a simple type; what is refused is left out."""
    for name, field in type(config).model_fields.items():
        for value in _others(field, getattr(config, name)):
            try:
                yield name, type(config)(**{**given(config), field.alias or name: value})
            except ValidationError:
                continue


def _others(field: FieldInfo, value: Any) -> Iterator[Any]:
    kinds = set(_parts(field.annotation))
    literals = [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    yield from (choice for choice in literals if choice != value)
    if bool in kinds:
        yield not value
    elif int in kinds:
        yield from (1, 2) if value is None else (value + 1, value - 1)
    elif float in kinds:
        yield from (0.6, 1e6) if value is None else (value + 0.6, value / 2 if value else 0.3)
    if type(None) in kinds and value is not None:
        yield None


def _parts(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) in (Union, types.UnionType):
        for argument in get_args(annotation):
            yield from _parts(argument)
    else:
        yield annotation
