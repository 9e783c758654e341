"""`__all__` says what a package offers: all of it exists, and nothing that it gathers is left out."""

from __future__ import annotations

import ast
import importlib

import pytest

from tests.source_tree import FOLDERS, Module, modules


def exported(module: Module) -> list[str] | None:
    """The literal value of `__all__`, None where there is none."""
    for node in module.tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return ast.literal_eval(node.value)
    return None


WITH_ALL = [module for module in modules() if exported(module) is not None]


@pytest.mark.parametrize("module", WITH_ALL, ids=lambda module: module.name)
def test_everything_that_is_exported_exists(module):
    names = exported(module)
    imported = importlib.import_module(module.name)
    assert [name for name in names if name not in vars(imported)] == []
    assert len(set(names)) == len(names)
    assert names == sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name)) or names == sorted(names)


@pytest.mark.parametrize(
    "module", [m for m in modules() if m.path.name == "__init__.py" and m not in WITH_ALL], ids=lambda module: module.name
)
def test_a_package_that_gathers_says_so(module):
    """An `__init__.py` without `__all__` imports nothing: what it would offer is found where it is defined."""
    assert [ast.unparse(node) for node in module.tree.body if isinstance(node, ast.Import | ast.ImportFrom)] == []


@pytest.mark.parametrize("module", [m for m in WITH_ALL if m.path.name == "__init__.py"], ids=lambda module: module.name)
def test_everything_that_is_gathered_is_exported(module):
    gathered = {
        alias.asname or alias.name
        for node in module.tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FOLDERS.values()
        for alias in node.names
    }
    assert gathered <= set(exported(module))
