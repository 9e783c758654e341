"""What one key of a config means, what may stand there, and, given a config, what does and where it came from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import PurePath
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Len, Lt, MinLen
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from nat_finetune.config.component import ComponentConfig, Reference, TrainerConfig
from nat_finetune.config.descriptions import field_descriptions, summary
from nat_finetune.config.load import LoadedConfig
from nat_finetune.config.nodes import Mark, Node, dotted
from nat_finetune.config.overrides import locate
from nat_finetune.config.problems import find, shape_at
from nat_finetune.config.resolved import REDACTED, is_secret
from nat_finetune.config.schema import Slot
from nat_finetune.config.shape import ROOT, Shape, spellings, spots
from nat_finetune.errors import ConfigError, Problem
from nat_finetune.registry import Kind, Registry

_WORDS: dict[Any, str] = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", NoneType: "null"}
_EVALUATORS = ("eval", "evaluators")


@dataclass(frozen=True, slots=True)
class Explanation:
    """All that there is to say of a key."""

    key: str
    meaning: str | None
    """The text under its field."""
    expects: str
    default: str | None
    """As YAML would have it; None where the key must be given, and of a block, whose keys have their own."""
    value: str | None
    """What a config has there; None where no config was given."""
    origin: str | None
    """file:line, an override, an environment variable, or the default."""
    honoured: str | None
    """Which components the key is for; None where it is for the run itself."""
    keys: dict[str, str]
    """Keys inside it and the first words of their meaning; none where it is no block."""


def explain(key: str, registry: Registry, loaded: LoadedConfig | None = None) -> Explanation:
    """Explain a dotted key; without a config the names of components stand in place of entries.

    Raises:
        ConfigError: there is no such key; names the nearest.
    """
    tree = loaded.tree if loaded is not None else every_component(registry)
    try:
        path, shape = locate(tree, key, "explain", registry)
    except ConfigError as error:
        raise ConfigError([_with_places(problem, key, tree, registry) for problem in error.problems]) from None
    parent = shape_at(tree, path[:-1], registry) or ROOT
    field = _field(parent, find(tree, path[:-1]), str(path[-1]), registry)
    node = find(tree, path) if _stands(tree, path) else None
    model, name = field if field is not None else (None, None)
    return Explanation(
        key=dotted(path),
        meaning=field_descriptions(model).get(name) if model is not None and name is not None else None,
        expects=_expects(shape),
        default=_default(model, name),
        value=_value(node, str(path[-1]), _default(model, name)) if loaded is not None else None,
        origin=_origin(node, loaded) if loaded is not None else None,
        honoured=_honoured(path, model, registry),
        keys=_keys(shape, node or Node({}, Mark("")), registry),
    )


def _with_places(problem: Problem, key: str, tree: Node, registry: Registry) -> Problem:
    """The problem with the places where a key of this name stands."""
    name = key.rpartition(".")[2]
    places: list[str] = []
    for spot in spots(tree, registry):
        if name in spot.shape.keys(spot.node, registry) and spot.path:
            places.append(dotted((*spot.path, name)))
    shown = ", ".join(dict.fromkeys(places[:4]))
    hint = f"{name} is a key of {shown}" if shown else problem.hint
    return replace(problem, hint=hint)


def every_component(registry: Registry) -> Node:
    """A tree in which every component is an entry of its section under its own name."""
    mark = Mark("installed components")
    sections: dict[tuple[str, ...], dict[str, Node]] = {}
    for component in registry:
        path = _EVALUATORS if component.kind is Kind.EVALUATOR else (component.kind.value,)
        entry = Node({"_type": Node(component.name, mark, mark)}, mark, mark)
        sections.setdefault(path, {})[component.name] = entry
    evaluators = Node({"evaluators": Node(sections.pop(_EVALUATORS, {}), mark, mark)}, mark, mark)
    sections.pop((Kind.DATASET.value,), None)  # a dataset is named where it is used, not in a section
    return Node({path[0]: Node(entries, mark, mark) for path, entries in sections.items()} | {"eval": evaluators}, mark, mark)


def _field(parent: Shape, node: Node, key: str, registry: Registry) -> tuple[type[BaseModel], str] | None:
    for model in parent.models(node, registry):
        for name in model.model_fields:
            if key in spellings(model, name):
                return model, name
    return None


def _stands(tree: Node, path: tuple[str | int, ...]) -> bool:
    *above, last = path
    node = find(tree, tuple(above))
    return last in node.mapping if isinstance(last, str) else last < len(node.items)


def _expects(shape: Shape) -> str:
    reference = next((mark for mark in shape.marks if isinstance(mark, Reference)), None)
    if any(isinstance(mark, Slot) for mark in shape.marks):
        parts = ["a component (`_type` says which)"]
    elif reference is not None:
        parts = [f"the name of an entry of {reference.section}"]
    else:
        parts = [word for kind in shape.alternatives if kind is not NoneType and (word := _word(kind))]
    bounds = [text for mark in shape.marks for text in _bounds(mark)]
    if NoneType in shape.alternatives:
        parts.append("null")
    return ", ".join([" or ".join(dict.fromkeys(parts)), *bounds])


def _word(kind: Any) -> str:
    if kind in _WORDS:
        return _WORDS[kind]
    if get_origin(kind) is Literal:
        return " | ".join(str(choice) for choice in get_args(kind))
    if get_origin(kind) in (list, tuple, set, frozenset):
        return "a list"
    if isinstance(kind, type) and issubclass(kind, PurePath | SecretStr):
        return "a path" if issubclass(kind, PurePath) else "a text (secret)"
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return "a block"
    return "anything" if kind is Any else "entries by name"


def _bounds(mark: Any) -> list[str]:
    match mark:
        case Ge():
            return [f"at least {mark.ge}"]
        case Gt():
            return [f"above {mark.gt}"]
        case Le():
            return [f"at most {mark.le}"]
        case Lt():
            return [f"below {mark.lt}"]
        case MinLen() | Len() if mark.min_length:
            return [f"at least {mark.min_length} of them"]
        case FieldInfo():
            return [text for inner in mark.metadata for text in _bounds(inner)]
    return []


def _default(model: type[BaseModel] | None, name: str | None) -> str | None:
    if model is None or name is None:
        return None
    field = model.model_fields[name]
    value = field.get_default(call_default_factory=True)
    return None if value is PydanticUndefined or isinstance(value, BaseModel) else _as_yaml(value)


def _as_yaml(value: Any) -> str:
    if isinstance(value, BaseModel):
        inner = ", ".join(f"{name}: {_as_yaml(getattr(value, name))}" for name in type(value).model_fields)
        return f"{{{inner}}}"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_as_yaml(item)}' for key, item in value.items())}}}"
    if isinstance(value, list | tuple | set | frozenset):
        return f"[{', '.join(_as_yaml(item) for item in value)}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _value(node: Node | None, key: str, default: str | None) -> str | None:
    if node is None:
        return default
    return REDACTED if is_secret(key) and node.written is None else node.shown()


def _origin(node: Node | None, loaded: LoadedConfig) -> str:
    if node is None:
        return "the default"
    mark = node.mark if node.mark.line is None else node.key_mark or node.mark
    if mark.line is None:
        return mark.file
    base = "" if mark.file == str(loaded.path) else " (a base file)"
    environment = ", from the environment" if node.written is not None and node.expanded else ""
    return f"{mark.file}:{mark.line}{base}{environment}"


def _honoured(path: tuple[str | int, ...], model: type[BaseModel] | None, registry: Registry) -> str | None:
    if model is not None and issubclass(model, ComponentConfig):
        return f"`_type: {model.component_name}`"
    if len(path) != 2 or path[0] != "finetuning":
        return None
    trainers = [component for component in registry if component.kind is Kind.TRAINER]
    without = [c.name for c in trainers if issubclass(c.config_type, TrainerConfig) and path[1] in c.config_type.unhonoured]
    named = ", ".join(component.name for component in trainers if component.name not in without)
    return f"{named}; not by {', '.join(without)}, which refuse{'s' if len(without) == 1 else ''} it" if without else None


def _keys(shape: Shape, node: Node, registry: Registry) -> dict[str, str]:
    found: dict[str, str] = {}
    if shape.is_open:
        return dict.fromkeys(node.mapping, "")
    for model in shape.models(node, registry):
        texts = field_descriptions(model)
        for name in model.model_fields:
            found.setdefault(spellings(model, name)[0], texts.get(name, "").split(". ")[0])
        if not found:
            return {"": summary(model)}
    return found
