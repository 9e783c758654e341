"""Paths of input files, relative to the file that names them, made absolute: also in a base file in another folder."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from nat_finetune.config.component import InputPath
from nat_finetune.config.expand import folder_of
from nat_finetune.config.nodes import Node
from nat_finetune.config.shape import Spot


def resolve(tree: Node, spots: Iterable[Spot]) -> Node:
    """The tree with absolute input paths."""
    for spot in spots:
        marks = [mark for mark in spot.shape.marks if isinstance(mark, InputPath)]
        text = spot.node.value
        if marks and isinstance(text, str) and text and (_is_path_like(text) or not marks[0].only_if_path_like):
            path = os.path.abspath(folder_of(spot.node.mark) / Path(text).expanduser())
            resolved = replace(spot.node, value=path, written=spot.node.written or text)
            tree = put(tree, spot.path, resolved)
    return tree


def put(tree: Node, path: tuple[str | int, ...], node: Node) -> Node:
    """The tree with another node at a path that it has."""
    if not path:
        return node
    key, rest = path[0], path[1:]
    if isinstance(key, int):
        items = list(tree.items)
        items[key] = put(items[key], rest, node)
        return replace(tree, value=items)
    return replace(tree, value={**tree.mapping, key: put(tree.mapping[key], rest, node)})


def _is_path_like(text: str) -> bool:
    return text in (".", "..") or text.startswith(("./", "../", "/", "~/")) or text.endswith(".gguf")
