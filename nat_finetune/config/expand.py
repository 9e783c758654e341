"""`${VAR}` in the strings of a config, expanded after parsing: a value can't change the YAML around it.

    ${VAR}            the variable; an error where it is not set
    ${VAR:-default}   the default where it is not set or empty; the default may hold further `${...}`
    ${VAR:?message}   an error with this message where it is not set or empty
    ${VAR:+text}      the text where it is set and not empty, otherwise nothing
    $${VAR}           the text `${VAR}`

`$VAR` without braces is left alone. `file://path` as a whole value is the text of that file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from nat_finetune.config.nodes import Mark, Node, map_scalars, place
from nat_finetune.errors import Problem

TEXT_FILES = (".txt", ".md", ".j2", ".jinja2", ".jinja", ".prompt", ".tpl", ".template")
"""Extensions that `file://` reads, as in NAT."""

_HEAD = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(:-|:\?|:\+)?")
_FORMS = "the forms are ${VAR}, ${VAR:-default}, ${VAR:?message} and ${VAR:+text}; write $${ for a literal ${"


def expand(node: Node, environment: Mapping[str, str]) -> Node:
    """The tree with variables and `file://` texts in place; what could not be found is marked on its node."""
    return map_scalars(node, lambda scalar: _read_file(_expand_scalar(scalar, environment)))


@dataclass
class _Expansion:
    """One string on its way."""

    environment: Mapping[str, str]
    values: list[str] = field(default_factory=list)

    def run(self, text: str) -> str:
        """Raises ValueError with what to say."""
        done, rest = "", text
        while (start := rest.find("${")) >= 0:
            if start and rest[start - 1] == "$":
                done, rest = done + rest[: start - 1] + "${", rest[start + 2 :]
                continue
            end = _closing(rest, start + 2)
            done += rest[:start] + self._one(rest[start + 2 : end])
            rest = rest[end + 1 :]
        return done + rest

    def _one(self, inside: str) -> str:
        head = _HEAD.match(inside)
        if head is None or (head[2] is None and head.end() != len(inside)):
            raise ValueError(f"${{{inside}}} is not understood: {_FORMS}")
        name, operator, argument = head[1], head[2], inside[head.end() :]
        value = self.environment.get(name)
        if operator == ":-" and not value:
            return self.run(argument)
        if operator == ":+":
            return self.run(argument) if value else ""
        if value is None or (operator == ":?" and not value):
            said = f": {argument}" if operator == ":?" and argument else ""
            raise ValueError(f"the environment variable {name} is not set{said}")
        self.values.append(value)
        return value


def _expand_scalar(node: Node, environment: Mapping[str, str]) -> Node:
    if not isinstance(node.value, str) or "${" not in node.value:
        return node
    expansion = _Expansion(environment)
    try:
        value = expansion.run(node.value)
    except ValueError as error:
        hint = "set it, or write ${VAR:-default}" if "is not set" in str(error) else None
        return replace(node, problem=_problem(node.mark, str(error), hint))
    return replace(node, value=value, written=node.value, expanded=tuple(expansion.values))


def _closing(text: str, start: int) -> int:
    """Index of the brace that closes the `${` before `start`."""
    depth = 1
    for index in range(start, len(text)):
        if text[index] == "{" and text[index - 1] == "$":
            depth += 1
        elif text[index] == "}":
            depth -= 1
            if depth == 0:
                return index
    raise ValueError(f"`${{` without a closing brace: {_FORMS}")


def folder_of(mark: Mark) -> Path:
    """What relative paths of a node are relative to: its file's folder; an override's, the working directory."""
    return Path() if mark.line is None else Path(mark.file).parent


def _read_file(node: Node) -> Node:
    if node.problem is not None or not isinstance(node.value, str) or not node.value.startswith("file://"):
        return node
    name = node.value.removeprefix("file://")
    path = (folder_of(node.mark) / Path(name).expanduser()).resolve()
    shown = node.written or node.value
    if path.suffix not in TEXT_FILES:
        problem = _problem(node.mark, f"{shown} is no text file", f"file:// reads {' '.join(TEXT_FILES)}")
        return replace(node, problem=problem)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        return replace(node, problem=_problem(node.mark, f"{shown} can't be read: {error.strerror}", "relative to this file"))
    except UnicodeDecodeError:
        return replace(node, problem=_problem(node.mark, f"{shown} is not UTF-8"))
    return replace(node, value=text, written=shown)


def _problem(mark: Mark, message: str, hint: str | None = None) -> Problem:
    return place(Problem(message, hint=hint), mark)
