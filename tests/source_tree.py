"""The package's source as syntax trees, for the tests that keep the house in order."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {"nat_finetune": "nat_finetune", "plugins": "nat_finetune_plugins", "workflows": "nat_finetune_workflows"}
"""Folder of the checkout -> the name that it is imported by."""


@dataclass(frozen=True)
class Module:
    """One source file."""

    name: str
    path: Path

    @property
    def place(self) -> str:
        """Its path in the checkout."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def tree(self) -> ast.Module:
        """Its syntax tree."""
        return _parse(self.path)

    @property
    def is_script(self) -> bool:
        """A file that is run by itself, not imported, such as the one that builds a shipped policy."""
        return '__name__ == "__main__"' in self.path.read_text(encoding="utf-8")


@dataclass(frozen=True)
class Import:
    """One import statement's target."""

    target: str
    line: int
    at_import_time: bool
    """Not inside a function, nor under TYPE_CHECKING."""


@cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def modules() -> list[Module]:
    """Every module of the package, its plugins and its workflows."""
    return [
        Module(_dotted(package, path.relative_to(ROOT / folder)), path)
        for folder, package in FOLDERS.items()
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]


def _dotted(package: str, relative: Path) -> str:
    parts = [package, *relative.with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(module: Module) -> list[Import]:
    """Everything that a module imports, functions' bodies included; `from a import b` is `a.b` where that is a module."""
    known = {m.name for m in modules()}
    found = []
    for node, top in _walk(module.tree, at_import_time=True):
        if isinstance(node, ast.Import):
            found += [Import(alias.name, node.lineno, top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(module, node)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found.append(Import(inner if inner in known else base, node.lineno, top))
    return found


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    if node.level == 0:
        return node.module or ""
    package = module.name.split(".") if module.path.name == "__init__.py" else module.name.split(".")[:-1]
    return ".".join([*package[: len(package) - node.level + 1], *([node.module] if node.module else [])])


def _walk(node: ast.AST, *, at_import_time: bool) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        inside = at_import_time and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            inside = False
        yield child, inside
        yield from _walk(child, at_import_time=inside)
