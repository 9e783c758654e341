"""What pydantic says, in the words of someone who reads the YAML file: place, key, what was expected, what was found."""

from __future__ import annotations

import re
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from nat_finetune.config.nodes import Node, dotted, place, walk
from nat_finetune.config.shape import ROOT, Shape
from nat_finetune.errors import Problem
from nat_finetune.registry import Registry

_NAT = "a NAT key that nat-finetune does not support"
_ENTRY = ("name", "middleware")

NAT_KEYS: dict[str, tuple[str, ...]] = {
    "": (
        "general", "profiler", "s3", "memory", "object_stores", "retrievers", "embedders", "authentication", "optimizer",
        "run_configuration", "telemetry", "middleware", "function_groups", "front_end", "logging",
    ),
    "workflow": _ENTRY,
    "functions.*": _ENTRY,
    "llms.*": ("api_type", "thinking", "verify_ssl", "optimizable_params", "search_space"),
    "eval.general": (
        "workflow_alias", "output_dir", "output", "profiler", "validate_llm_endpoints", "per_input_user_id", "s3",
    ),
    "*.dataset": ("s3", "remote_file_path", "function", "kwargs"),
    "*.dataset.structure": ("generated_answer_key", "trajectory_key", "expected_trajectory_key"),
    "trajectory_builders.*": ("reward",),
    "trainers.*": ("reward",),
    "finetuning": ("run_configuration",),
}  # fmt: skip
"""Keys that NAT 1.9 has and nat-finetune does not, by where they stand."""

_WHAT_TO_DO = {
    "run_configuration": "NAT fills it from its command line: see finetuning.validation and nat-finetune run --help",
    "reward": "NAT fills it from finetuning.reward_function: set that",
    "output_dir": "finetuning.output_dir says where run folders go",
    "output": "finetuning.output_dir says where run folders go",
}


def from_pydantic(error: ValidationError, tree: Node, registry: Registry) -> list[Problem]:
    """One problem for each error whose node does not have one already."""
    problems: list[Problem] = []
    for details in error.errors(include_url=False):
        path = _path_in(tree, details["loc"])
        node = find(tree, path)
        if node.problem is None:
            problems.append(_translate(details, path, node, tree, registry))
    return _joined(problems)


def _joined(problems: list[Problem]) -> list[Problem]:
    """What several alternatives of one value expect, in one problem: `expected at least 1 or 'auto', found 0`."""
    made: list[Problem] = []
    for problem in problems:
        last, found = made[-1] if made else None, f", found {problem.message.rpartition(', found ')[2]}"
        alike = last is not None and last.key == problem.key and last.message.startswith("expected ")
        if last is not None and alike and last.message.endswith(found) and problem.message.startswith("expected "):
            wanted = problem.message.removeprefix("expected ")
            made[-1] = replace(last, message=f"{last.message.removesuffix(found)} or {wanted}")
        else:
            made.append(problem)
    return made


def find(tree: Node, path: tuple[str | int, ...]) -> Node:
    """The node at a path, or the deepest one on the way to it."""
    node = tree
    for part in path:
        below = node.mapping.get(part) if isinstance(part, str) else _item(node, part)
        if below is None:
            return node
        node = below
    return node


def nearest(name: str, known: list[str]) -> str | None:
    """What to propose for a name that is not known."""
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else None


def is_nat_key(path: tuple[str | int, ...]) -> bool:
    """Whether NAT has a key here that nat-finetune has not."""
    return any(_matches(pattern, path[:-1]) and path[-1] in keys for pattern, keys in NAT_KEYS.items())


def shape_at(tree: Node, path: tuple[str | int, ...], registry: Registry) -> Shape | None:
    """What may stand at a path."""
    shape: Shape | None = ROOT
    node = tree
    for part in path:
        shape = shape.child(part, node, registry) if shape is not None else None
        node = find(node, (part,))
    return shape


def unknown_key(path: tuple[str | int, ...], tree: Node, registry: Registry) -> tuple[str, str | None]:
    """Message and hint for a key that the schema does not have."""
    name = str(path[-1])
    if is_nat_key(path):
        return _NAT, _WHAT_TO_DO.get(name)
    shape = shape_at(tree, path[:-1], registry)
    known = shape.keys(find(tree, path[:-1]), registry) if shape is not None else []
    hint = nearest(name, known) or (f"known: {', '.join(known)}" if known else None)
    return f"unknown key {name!r}", hint


def _translate(details: Any, path: tuple[str | int, ...], node: Node, tree: Node, registry: Registry) -> Problem:
    kind, context = details["type"], details.get("ctx", {})
    mark, hint = node.mark, None
    if kind == "extra_forbidden":
        message, hint = unknown_key(path, tree, registry)
        mark = node.key_mark or node.mark
    elif kind == "missing":
        message, mark = f"the key {path[-1]!r} is missing", node.key_mark or node.mark
        given = [key for key in node.mapping if (nearest(key, [str(path[-1])]))]
        hint = f"found {given[0]!r}" if given else None
    elif kind == "component_not_found":
        message, hint = context["message"], context["hint"]
        mark = mark if node.value is not None and not node.mapping else node.key_mark or node.mark
    elif kind == "incomplete":
        message, mark = str(details["msg"]), node.key_mark or node.mark
    elif kind == "value_error":
        message = str(context["error"])
    elif kind in ("union_tag_invalid", "union_tag_not_found"):
        return _unknown_member(kind, context, path, node)
    else:
        message, hint = _expected(details, node)
    return Problem(_without_secrets(message, node), dotted(path), mark.file, mark.line, mark.column, hint)


def _unknown_member(kind: str, context: Any, path: tuple[str | int, ...], node: Node) -> Problem:
    """A block whose form depends on one of its keys, where that key is missing or has no such value."""
    key = context["discriminator"].strip("'")
    tag = node.mapping.get(key)
    if kind == "union_tag_not_found" or tag is None:
        return place(Problem(f"the key {key!r} is missing", dotted((*path, key))), node.key_mark or node.mark)
    known = re.findall(r"'([^']*)'", context["expected_tags"])
    hint = nearest(str(tag.value), known) if tag.written is None else None
    message = f"expected {' or '.join(map(repr, known))}, found {tag.shown()}"
    return place(Problem(message, dotted((*path, key)), hint=hint), tag.mark)


def _expected(details: Any, node: Node) -> tuple[str, str | None]:
    said = str(details["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    said = said.replace("Input should be ", "expected ").replace(", unable to parse string as an integer", "")
    said = said.replace(", unable to parse string as a number", "").replace("a valid dictionary", "a mapping")
    said = (
        said.replace("a valid string", "a text").replace("a valid list", "a list").replace("less than or equal to", "at most")
    )
    said = said.replace("greater than or equal to", "at least").replace("a valid ", "a ").replace("a integer", "an integer")
    if details["type"] == "model_type" or "or instance of" in said:
        said = "expected a mapping"
    hint = None
    if details["type"] == "string_too_short" and node.value == "":
        return "expected a text, found an empty one", "give one, or leave the key out"
    if details["type"] == "string_type" and isinstance(node.value, int | float):
        hint = "write it in quotes"
    if details["type"] == "literal_error" and isinstance(node.value, str):
        hint = nearest(node.value, re.findall(r"'([^']*)'", details["ctx"]["expected"])) if node.written is None else None
    if node.mapping and not said.startswith("expected "):  # a validator's own sentence about several keys
        return said, hint
    return f"{said}, found {node.shown()}", hint


def _without_secrets(message: str, node: Node) -> str:
    """A message of a component's own validator may quote the value: show the text as written instead."""
    expanded = [value for _, below in walk(node) for value in below.expanded]
    for value in sorted(expanded, key=len, reverse=True):
        if value and value in message:
            message = message.replace(value, "${…}")
    return message


def _path_in(tree: Node, location: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """The location of pydantic without the parts that stand for alternatives of a union; the last part stays if it is a key."""
    path: tuple[str | int, ...] = ()
    node = tree
    for index, part in enumerate(location):
        below = node.mapping.get(part) if isinstance(part, str) else _item(node, part)
        if below is not None:
            node, path = below, (*path, part)
        elif index == len(location) - 1 and isinstance(part, str) and isinstance(node.value, dict):
            path = (*path, part)
    return path


def _item(node: Node, index: int) -> Node | None:
    return node.items[index] if 0 <= index < len(node.items) else None


def _matches(pattern: str, path: tuple[str | int, ...]) -> bool:
    """Whether `a.*` names the path; a leading `*` stands for any number of keys."""
    parts = pattern.split(".") if pattern else []
    if parts and parts[0] == "*":
        parts = parts[1:]
        path = path[-len(parts) :]
    return len(parts) == len(path) and all(p in ("*", key) for p, key in zip(parts, path, strict=True))
