"""YAML text to a tree of nodes, each of which knows where it stands: file, line and column.

Read by YAML 1.2's rules for plain scalars: `1e-5` is a number, `yes` and `on` are texts (a field that wants a boolean still
takes them), `010` is ten. Keys are texts and occur once. Merge keys (`<<`) and aliases work, aliases inside themselves don't.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import yaml

from nat_finetune.errors import ConfigError, Problem

MAX_NODES = 100_000
"""More than any config needs, less than nested aliases make of a few lines."""

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Mark:
    """A place: a file's line and column, counted from 1; an override has no line."""

    file: str
    line: int | None = None
    column: int | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A value of the YAML file, with its place."""

    value: dict[str, Node] | list[Node] | Scalar
    mark: Mark
    key_mark: Mark | None = None
    """Where its key stands, None for list items and the root."""
    written: str | None = None
    """The text before `${...}` was expanded in it, None where nothing was."""
    expanded: tuple[str, ...] = ()
    """Values of environment variables that are in `value`: never shown."""
    problem: Problem | None = None
    """Why the value is not known (an unset variable, a missing file); its key is filled in by whoever reports it."""

    @property
    def mapping(self) -> dict[str, Node]:
        """Its entries, none where it is no mapping."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def items(self) -> list[Node]:
        """Its items, none where it is no list."""
        return self.value if isinstance(self.value, list) else []

    def plain(self) -> Any:
        """The value without places."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value

    def shown(self) -> str:
        """How a message shows it: short, and without values of environment variables."""
        if isinstance(self.value, dict):
            return "a mapping"
        if isinstance(self.value, list):
            return "a list"
        if self.written is not None:
            return _shortened(self.written)
        if self.value is None:
            return "nothing"
        if isinstance(self.value, bool):
            return str(self.value).lower()
        return repr(_shortened(self.value)) if isinstance(self.value, str) else str(self.value)


def walk(node: Node, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Node]]:
    """Every node of a tree with its path, the root first."""
    yield path, node
    for key, child in node.mapping.items():
        yield from walk(child, (*path, key))
    for index, child in enumerate(node.items):
        yield from walk(child, (*path, index))


def map_scalars(node: Node, change: Callable[[Node], Node]) -> Node:
    """The same tree with every scalar changed."""
    if isinstance(node.value, dict):
        return replace(node, value={key: map_scalars(child, change) for key, child in node.value.items()})
    if isinstance(node.value, list):
        return replace(node, value=[map_scalars(child, change) for child in node.value])
    return change(node)


def dotted(path: tuple[str | int, ...]) -> str:
    """`a.b[0].c`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def place(problem: Problem, mark: Mark) -> Problem:
    """The problem with a place."""
    return Problem(problem.message, problem.key, mark.file, mark.line, mark.column, problem.hint)


def parse(text: str, file: str) -> Node:
    """The tree of one YAML document.

    Raises:
        ConfigError: the text is no YAML, has a key twice, or has more than one document.
    """
    try:
        root = _compose(text)
    except yaml.MarkedYAMLError as error:
        raise ConfigError(_syntax_problem(error, file)) from None
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        message = f"not a text file: it contains the character 0x{ord(text[error.position]):02x}"
        raise ConfigError(Problem(message, file=file, line=line, column=column)) from None
    except RecursionError:
        raise ConfigError(Problem("nested too deeply", file=file)) from None
    if root is None:
        return Node(None, Mark(file, 1, 1))
    reader = _Reader(file)
    node = reader.read(root, None)
    if reader.problems:
        raise ConfigError(reader.problems)
    return node


class _Loader(yaml.SafeLoader):
    """PyYAML's loader with the plain scalars of YAML 1.2's core schema; used for composing only."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - declared so by PyYAML


def _compose(text: str) -> yaml.Node | None:
    loader = _Loader(text)
    try:
        return loader.get_single_node()
    finally:
        loader.dispose()


_TAG = "tag:yaml.org,2002:"
_PLAIN: tuple[tuple[str, str, str], ...] = (
    ("null", r"^(?:~|null|Null|NULL|)$", "~nN"),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("int", r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$", "-+0123456789"),
    ("float", r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?)$", "-+.0123456789"),
    ("float", r"^(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$", "-+."),
    ("merge", r"^<<$", "<"),
)


def add_plain_scalars(kind: type[yaml.resolver.BaseResolver]) -> None:
    """Have a loader or dumper of PyYAML know the plain scalars of this module."""
    for name, pattern, first in _PLAIN:
        kind.add_implicit_resolver(_TAG + name, re.compile(pattern), [*first, ""] if name == "null" else list(first))


add_plain_scalars(_Loader)


class _Reader:
    """PyYAML's nodes to ours; collects all problems of the document."""

    def __init__(self, file: str) -> None:
        self.problems: list[Problem] = []
        self._file = file
        self._open: list[yaml.Node] = []
        self._count = 0

    def read(self, node: yaml.Node, key_mark: Mark | None) -> Node:
        mark = self._mark(node)
        self._count += 1
        if self._count > MAX_NODES:
            raise ConfigError(self._problem(node, f"more than {MAX_NODES} values: aliases that multiply?"))
        if any(node is other for other in self._open):
            self.problems.append(self._problem(node, "this alias contains itself"))
            return Node(None, mark, key_mark)
        self._open.append(node)
        try:
            return Node(self._value(node), mark, key_mark)
        finally:
            self._open.pop()

    def _value(self, node: yaml.Node) -> dict[str, Node] | list[Node] | Scalar:
        if node.tag not in (_TAG + "map", _TAG + "seq") and not isinstance(node, yaml.ScalarNode):
            self.problems.append(self._problem(node, _unsupported(node)))
            return None
        if isinstance(node, yaml.MappingNode):
            return self._entries(node)
        if isinstance(node, yaml.SequenceNode):
            return [self.read(child, None) for child in node.value]
        assert isinstance(node, yaml.ScalarNode), "YAML has three kinds of nodes"
        try:
            return _scalar(node)
        except ValueError as error:
            self.problems.append(self._problem(node, str(error)))
            return None

    def _entries(self, node: yaml.MappingNode) -> dict[str, Node]:
        entries: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        for key_node, value_node in node.value:
            mark = self._mark(key_node)
            if key_node.tag == _TAG + "merge":
                merged = self._merged(value_node) | merged
            elif not isinstance(key_node, yaml.ScalarNode) or key_node.tag != _TAG + "str":
                written = key_node.value if isinstance(key_node, yaml.ScalarNode) else "a list or mapping"
                self.problems.append(
                    self._problem(key_node, f"a key must be a text, found {written}", hint="write it in quotes")
                )
            elif key_node.value in entries:
                first = entries[key_node.value].key_mark
                line = first.line if first else None
                self.problems.append(self._problem(key_node, f"the key {key_node.value!r} stands twice, first in line {line}"))
            else:
                entries[key_node.value] = self.read(value_node, mark)
        return merged | entries

    def _merged(self, node: yaml.Node) -> dict[str, Node]:
        """What `<<:` brings in; of several mappings the first one wins."""
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, Node] = {}
        for source in sources:
            if isinstance(source, yaml.MappingNode):
                merged = self.read(source, None).mapping | merged
            else:
                self.problems.append(self._problem(source, "`<<` takes a mapping or a list of mappings"))
        return merged

    def _mark(self, node: yaml.Node) -> Mark:
        return Mark(self._file, node.start_mark.line + 1, node.start_mark.column + 1)

    def _problem(self, node: yaml.Node, message: str, hint: str | None = None) -> Problem:
        return place(Problem(message, hint=hint), self._mark(node))


def _scalar(node: yaml.ScalarNode) -> Scalar:
    text: str = node.value
    match node.tag.removeprefix(_TAG):
        case "str" | "merge":
            return text
        case "null":
            return None
        case "bool":
            if text.lower() not in ("true", "false"):
                raise ValueError(f"`!!bool` takes true or false, found {text!r}")
            return text.lower() == "true"
        case "int":
            return int(text, 0) if text.startswith(("0o", "0x")) else int(text)
        case "float":
            return float(text.replace(".", "", 1) if re.match(r"[-+]?\.[a-zA-Z]", text) else text)
        case _:
            raise ValueError(_unsupported(node))


def _unsupported(node: yaml.Node) -> str:
    return f"the tag {node.tag.replace(_TAG, '!!')} is not supported"


def _syntax_problem(error: yaml.MarkedYAMLError, file: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    message = f"invalid YAML: {error.problem or error.context}"
    if error.context and error.problem:
        message += f", {error.context}"
    hint = "YAML indents with spaces, not tabs" if "'\\t'" in message else None
    if error.problem and "mapping values are not allowed" in error.problem:
        hint = "a text with `: ` in it must be in quotes"
    if error.problem and "but got '{'" in error.problem:
        hint = "inside `{...}` or `[...]` a `${VAR}` must be in quotes"
    line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
    return Problem(message, file=file, line=line, column=column, hint=hint)


def _shortened(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
