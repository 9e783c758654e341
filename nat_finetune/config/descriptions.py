"""What the keys of a config mean: the texts that stand under the fields of the config classes, read from their source.

They are read when somebody asks (`schema`, `explain`), not when classes are made: that would slow every start.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from itertools import pairwise

from pydantic import BaseModel


def field_descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Field name to its text, own fields and inherited ones; fields without a text, or without source at hand, are left out."""
    found: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if issubclass(kind, BaseModel) and kind is not BaseModel:
            found |= _own(kind)
    return {name: text for name, text in found.items() if name in model.model_fields}


def summary(model: type[BaseModel]) -> str:
    """First paragraph of the class's docstring, on one line."""
    return " ".join((model.__doc__ or "").strip().split("\n\n")[0].split())


def _own(model: type[BaseModel]) -> dict[str, str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(model)))
    except (OSError, TypeError, SyntaxError):  # made in an interpreter's prompt, or shipped without source
        return {}
    (body,) = [node.body for node in tree.body if isinstance(node, ast.ClassDef)] or [[]]
    texts: dict[str, str] = {}
    for statement, following in pairwise(body):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = _text(following)
            if text is not None:
                texts[statement.target.id] = text
    return texts


def _text(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, str):
        return " ".join(statement.value.value.split())
    return None
