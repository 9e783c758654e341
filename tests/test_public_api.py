"""What plugin authors may rely on: names and signatures are as `public_api.txt` has them.

A change here is a change for every plugin: see "What you can rely on" in docs/plugins.md. After one that is meant, write the
list anew: `python -m tests.test_public_api` in the checkout.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
from enum import Enum
from typing import Any, TypeVar

from pydantic import BaseModel

from tests.source_tree import ROOT

LIST = ROOT / "tests" / "public_api.txt"
MODULES = (
    "registry",
    "config.component",
    "interfaces",
    "types",
    "errors",
    "tracing",
    "remote.interfaces",
    "testing",
    "testing.conformance",
)


def written() -> str:
    """The list as the code has it now."""
    lines = []
    for name in MODULES:
        module = importlib.import_module(f"nat_finetune.{name}")
        own = vars(module).get("__all__") or defined(module)
        lines += [line for key in sorted(own) for line in described(f"{name}.{key}", vars(module)[key])]
    return "\n".join(lines) + "\n"


def defined(module: Any) -> list[str]:
    """Public names that a module's own source defines, type variables apart."""
    names = []
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [target.id for target in targets if isinstance(target, ast.Name)]
    return [name for name in names if not name.startswith("_") and not isinstance(vars(module)[name], TypeVar)]


def described(name: str, value: Any) -> list[str]:
    """One line for a name, and one for each of its public members."""
    if inspect.isfunction(value):
        return [f"{name}{signature(value)}"]
    if not inspect.isclass(value):
        return [name]
    if issubclass(value, Enum):
        return [f"{name}: {', '.join(member.value for member in value)}"]
    lines = [name]
    if dataclasses.is_dataclass(value):
        lines = [f"{name}({', '.join(field.name + ('' if required(field) else '=') for field in dataclasses.fields(value))})"]
    elif issubclass(value, BaseModel):
        lines = [f"{name}: {', '.join(value.model_fields)}"]
    elif "__init__" in vars(value) and inspect.isfunction(vars(value)["__init__"]):
        lines = [f"{name}{signature(value.__init__)}"]
    for key, member in sorted(vars(value).items()):
        if not key.startswith("_") and inspect.isfunction(member):
            lines.append(f"{name}.{key}{signature(member)}")
        elif not key.startswith("_") and isinstance(member, property):
            lines.append(f"{name}.{key}")
    return lines


def required(field: Any) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def signature(function: Any) -> str:
    """Names and kinds of the parameters, and which have a default; not how they are annotated."""
    bare = [
        parameter.replace(annotation=parameter.empty, default=parameter.empty if parameter.default is parameter.empty else ...)
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name not in ("self", "cls")
    ]
    return str(inspect.Signature(bare)).replace("=Ellipsis", "=…")


def test_the_public_names_are_those_that_are_listed():
    meant = "if that is meant: `python -m tests.test_public_api`, and say so in CHANGELOG"
    assert written() == LIST.read_text(encoding="utf-8"), meant


def test_what_the_docs_call_public_is_listed():
    text = LIST.read_text(encoding="utf-8")
    wanted = [
        "registry.register_trainer_adapter",
        "config.component.LLMRef",
        "interfaces.TrainingRun.select(",
        "types.Rollout(",
    ]
    wanted += [
        "errors.PolicyFailure",
        "tracing.candidate(",
        "testing.ScriptedChatModel(",
        "testing.conformance.check_builder(",
    ]
    assert [name for name in wanted if f"\n{name}" not in f"\n{text}"] == []


def test_every_public_thing_says_what_it_is():
    silent = [
        f"{name}.{key}"
        for name in MODULES
        for key, value in vars(importlib.import_module(f"nat_finetune.{name}")).items()
        if not key.startswith("_") and (inspect.isclass(value) or inspect.isfunction(value))
        if value.__module__.startswith("nat_finetune.") and not inspect.getdoc(value)
    ]
    assert silent == []


if __name__ == "__main__":
    LIST.write_text(written(), encoding="utf-8")
