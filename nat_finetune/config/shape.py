"""What may stand at a path of a config, found from the schema and, for components, from the `_type` that stands there.

Used before validation, where a path's type must be known although the rest of the file may be wrong: overrides, references,
paths of input files, and names to propose for a wrong key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AliasChoices, BaseModel, SecretStr

from nat_finetune.config.nodes import Node
from nat_finetune.config.schema import RunConfig, Slot, type_key
from nat_finetune.errors import Problem
from nat_finetune.registry import Registry


@dataclass(frozen=True, slots=True)
class Shape:
    """The type of one value, as the alternatives that its annotation allows."""

    alternatives: tuple[Any, ...]
    """Types without Annotated and Union around them."""
    marks: tuple[Any, ...] = ()
    """Reference, InputPath, Slot, ... from the annotation."""

    @classmethod
    def of(cls, annotation: Any, marks: tuple[Any, ...] = ()) -> Shape:
        """The shape of an annotation."""
        if get_origin(annotation) is Annotated:
            return cls.of(annotation.__origin__, (*marks, *annotation.__metadata__))
        if get_origin(annotation) in (Union, UnionType):
            parts = [cls.of(argument) for argument in get_args(annotation)]
            inner = [mark for part in parts for mark in part.marks]
            return cls(tuple(kind for part in parts for kind in part.alternatives), (*marks, *inner))
        return cls((annotation,), marks)

    def models(self, node: Node, registry: Registry) -> list[type[BaseModel]]:
        """The classes that may describe a mapping; a component's only where its `_type` is known."""
        for mark in self.marks:
            if isinstance(mark, Slot):
                entry = {key: child.value for key, child in node.mapping.items()}
                found = mark.config_type(entry, registry)
                return [] if isinstance(found, Problem) else [found]
        models = [kind for kind in self.alternatives if isinstance(kind, type) and issubclass(kind, BaseModel)]
        fitting = [model for model in models if _literals_fit(model, node)]
        return fitting or models

    def keys(self, node: Node, registry: Registry) -> list[str]:
        """Names of the keys that a mapping may have here, none where any may."""
        names = [name for model in self.models(node, registry) for name in names_of(model)]
        return sorted(set(names) | ({type_key(node.mapping)} if self.is_component else set()))

    def child(self, key: str | int, node: Node, registry: Registry) -> Shape | None:
        """The shape of an entry or item, None where there can't be one."""
        if self.is_component and key == type_key(node.mapping):
            return Shape((str,))
        for model in self.models(node, registry) if isinstance(key, str) else ():
            for name, field in model.model_fields.items():
                if key in spellings(model, name):
                    return Shape.of(field.annotation, tuple(field.metadata))
        for kind in self.alternatives:
            if kind is Any:
                return Shape((Any,))
            arguments = get_args(kind)
            if get_origin(kind) in (dict, Mapping) and isinstance(key, str):
                return Shape.of(arguments[1])
            if get_origin(kind) in (list, tuple, set, frozenset) and isinstance(key, int):
                return Shape.of(arguments[0])
        return None

    @property
    def is_component(self) -> bool:
        """Whether a component stands here."""
        return any(isinstance(mark, Slot) for mark in self.marks)

    @property
    def is_open(self) -> bool:
        """Whether a mapping may have any key here: names of entries."""
        return any(kind is Any or get_origin(kind) in (dict, Mapping) for kind in self.alternatives)

    def accepts(self, *types: type) -> bool:
        """Whether one of these types may stand here."""
        for kind in self.alternatives:
            found = {type(value) for value in get_args(kind)} if get_origin(kind) is Literal else {kind}
            if found & set(types):
                return True
        return False

    @property
    def is_text(self) -> bool:
        """Whether a text is expected and nothing that YAML would read otherwise."""
        numbers_and_more = self.accepts(int, float, bool, Any)
        texts = self.accepts(str, SecretStr) or any(isinstance(k, type) and issubclass(k, PurePath) for k in self.alternatives)
        return texts and not numbers_and_more

    @property
    def is_optional(self) -> bool:
        """Whether null may stand here."""
        return self.accepts(NoneType)


ROOT = Shape((RunConfig,))


def spots(node: Node, registry: Registry, shape: Shape = ROOT, path: tuple[str | int, ...] = ()) -> Iterator[Spot]:
    """Every place of a tree that the schema knows, with its shape."""
    yield Spot(path, shape, node)
    children: list[tuple[str | int, Node]] = [*node.mapping.items(), *enumerate(node.items)]
    for key, child in children:
        below = shape.child(key, node, registry)
        if below is not None:
            yield from spots(child, registry, below, (*path, key))


@dataclass(frozen=True, slots=True)
class Spot:
    """A node with its path and what may stand there."""

    path: tuple[str | int, ...]
    shape: Shape
    node: Node


def names_of(model: type[BaseModel]) -> list[str]:
    """All spellings of a model's keys."""
    return [spelling for name in model.model_fields for spelling in spellings(model, name)]


def spellings(model: type[BaseModel], name: str) -> list[str]:
    """The keys under which a field may be given, the preferred one first."""
    field = model.model_fields[name]
    alias = field.validation_alias or field.alias
    aliases = [alias] if isinstance(alias, str) else []
    if isinstance(alias, AliasChoices):
        aliases = [choice for choice in alias.choices if isinstance(choice, str)]
    by_name = model.model_config.get("populate_by_name") or model.model_config.get("validate_by_name")
    return list(dict.fromkeys([name, *aliases] if by_name or not aliases else aliases))


def _literals_fit(model: type[BaseModel], node: Node) -> bool:
    """Whether a mapping has none of the Literal fields of a model (`name: dpo`) at another value."""
    for name, field in model.model_fields.items():
        given = node.mapping.get(name)
        if given is not None and get_origin(field.annotation) is Literal and given.value not in get_args(field.annotation):
            return False
    return True
