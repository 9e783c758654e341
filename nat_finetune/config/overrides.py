"""`-o path.to.key=value`: one value of a config replaced from the command line, typed as the schema types its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nat_finetune.config.expand import expand
from nat_finetune.config.nodes import Mark, Node, parse
from nat_finetune.config.problems import nearest, unknown_key
from nat_finetune.config.shape import ROOT, Shape
from nat_finetune.errors import ConfigError, Problem
from nat_finetune.registry import Registry

Path = tuple[str | int, ...]


def apply(tree: Node, overrides: Sequence[str], environment: Mapping[str, str], registry: Registry) -> Node:
    """The tree with all overrides in place, later ones winning.

    Raises:
        ConfigError: some name no place of the schema, or are not of the form `path=value`; all of them at once.
    """
    problems: list[Problem] = []
    for override in overrides:
        try:
            tree = _apply_one(tree, override, environment, registry)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return tree


def _apply_one(tree: Node, override: str, environment: Mapping[str, str], registry: Registry) -> Node:
    name, equals, text = override.partition("=")
    source = f"-o {override if len(override) <= 60 else override[:59] + '…'}"
    if not equals or not name.strip():
        raise ConfigError(Problem("an override is `path.to.key=value`", file=source))
    path, shape = locate(tree, name.strip(), source, registry)
    value = expand(_value(text, shape, source), environment)
    return _set(tree, path, value, Mark(source))


def locate(tree: Node, name: str, source: str, registry: Registry) -> tuple[Path, Shape]:
    """Path and shape of the place that a dotted name means in a tree.

    Names of entries may hold dots (`llms.gpt-4.1.temperature`): at each level the longest known key wins.

    Raises:
        ConfigError: there is no such place; `source` says who asked for it.
    """
    parts = name.replace("[", ".").replace("]", "").split(".")
    node, shape = tree, ROOT
    path: Path = ()
    while parts:
        key, length = _next_key(parts, node, shape, registry)
        path = (*path, key)
        below = shape.child(key, node, registry)
        last = length == len(parts)
        if below is None or not _may_be_set(node, shape, key, parts[length:]):
            raise ConfigError(_no_such_place(tree, node, path, name, source, shape, registry))
        parts = parts[length:]
        child = node.mapping.get(key) if isinstance(key, str) else node.items[key]
        node, shape = child or Node({}, Mark(source)), below
        if last:
            break
    return path, shape


def _next_key(parts: list[str], node: Node, shape: Shape, registry: Registry) -> tuple[str | int, int]:
    if isinstance(node.value, list) and parts[0].isdigit() and int(parts[0]) < len(node.value):
        return int(parts[0]), 1
    known = {*node.mapping, *shape.keys(node, registry)}
    for length in range(len(parts), 0, -1):
        if ".".join(parts[:length]) in known:
            return ".".join(parts[:length]), length
    return parts[0], 1


def _may_be_set(node: Node, shape: Shape, key: str | int, rest: list[str]) -> bool:
    """Whether a key that the schema allows may be set: a component that is not there only by saying its `_type`."""
    if key in node.mapping or not isinstance(key, str) or not shape.is_open or rest == ["_type"]:
        return True
    below = shape.child(key, node, Registry())
    return below is None or not below.is_component


def _no_such_place(tree: Node, node: Node, path: Path, name: str, source: str, shape: Shape, registry: Registry) -> Problem:
    if shape.is_open:
        known = list(node.mapping)
        hint = nearest(str(path[-1]), known) or (f"known: {', '.join(known)}" if known else None)
        return Problem(f"there is no entry {path[-1]!r}", key=name, file=source, hint=hint)
    message, hint = unknown_key(path, tree, registry)
    return Problem(message, key=name, file=source, hint=hint)


def _value(text: str, shape: Shape, source: str) -> Node:
    if shape.is_text and not (text == "null" and shape.is_optional):
        return Node(text, Mark(source))
    try:
        return _without_lines(parse(text, source), source)
    except ConfigError as error:
        found = [replace(problem, file=source, line=None, column=None) for problem in error.problems]
        raise ConfigError(found) from None


def _without_lines(node: Node, source: str) -> Node:
    mark = Mark(source)
    if isinstance(node.value, dict):
        return Node({key: _without_lines(child, source) for key, child in node.value.items()}, mark, mark)
    if isinstance(node.value, list):
        return Node([_without_lines(child, source) for child in node.value], mark, mark)
    return replace(node, mark=mark, key_mark=mark)


def _set(node: Node, path: Path, value: Node, mark: Mark) -> Node:
    if not path:
        return replace(value, key_mark=node.key_mark or mark)
    key, rest = path[0], path[1:]
    if isinstance(key, int):
        items = list(node.items)
        items[key] = _set(items[key], rest, value, mark)
        return replace(node, value=items)
    child = node.mapping.get(key, Node({}, mark, mark))
    return replace(node, value={**node.mapping, key: _set(child, rest, value, mark)})
