"""A config file and the files that it builds on: `base: other.yml`.

Mappings are merged key by key; lists and scalars replace what the base says, and so does an explicit `null`. The path is
relative to the file that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from nat_finetune.config.expand import expand
from nat_finetune.config.nodes import Node, parse, place
from nat_finetune.errors import ConfigError, Problem


@dataclass(frozen=True, slots=True)
class Source:
    """A config's tree and the files that it was read from, the named one first."""

    tree: Node
    files: tuple[Path, ...]


def read(path: Path, environment: Mapping[str, str], *, below: tuple[Path, ...] = (), named: Node | None = None) -> Source:
    """Read a file and its bases.

    Raises:
        ConfigError: one is missing, not text, not YAML, or a base of itself.
    """
    if path.resolve() in [other.resolve() for other in below]:
        chain = " → ".join(str(other) for other in (*below, path))
        raise ConfigError(_at(named, path, f"base files in a circle: {chain}"))
    tree = parse(_text(path, named), str(path))
    if tree.value is None:
        raise ConfigError(Problem("the file is empty", file=str(path), line=1, column=1, hint="see configs/ for whole ones"))
    if not isinstance(tree.value, dict):
        found = tree.shown()
        raise ConfigError(Problem(f"expected a mapping of sections, found {found}", file=str(path), line=1, column=1))
    base_node = tree.value.get("base")
    if base_node is None:
        return Source(replace(tree, value={k: v for k, v in tree.value.items() if k != "base"}), (path,))
    base_node = expand(base_node, environment)
    if base_node.problem is not None:
        raise ConfigError(replace(base_node.problem, key="base"))
    if not isinstance(base_node.value, str):
        raise ConfigError(_at(base_node, path, f"base takes the path of one file, found {base_node.shown()}"))
    base = read(path.parent / Path(base_node.value).expanduser(), environment, below=(*below, path), named=base_node)
    own = replace(tree, value={key: child for key, child in tree.value.items() if key != "base"})
    return Source(merge(base.tree, own), (path, *base.files))


def merge(base: Node, own: Node) -> Node:
    """`own` over `base`."""
    if not (isinstance(base.value, dict) and isinstance(own.value, dict)):
        return own
    merged = dict(base.value)
    for key, child in own.value.items():
        merged[key] = merge(merged[key], child) if key in merged else child
    return replace(own, value=merged)


def _text(path: Path, named: Node | None) -> str:
    shown = str(path) if named is None or named.written is None else named.shown()
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(_at(named, path, f"there is no file {shown}")) from None
    except IsADirectoryError:
        raise ConfigError(_at(named, path, f"{shown} is a folder, expected a YAML file")) from None
    except OSError as error:
        raise ConfigError(_at(named, path, f"{shown} can't be read: {error.strerror}")) from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, column = data.count(b"\n", 0, error.start) + 1, error.start - data.rfind(b"\n", 0, error.start)
        message = f"not a UTF-8 text file: byte 0x{data[error.start]:02x}"
        raise ConfigError(Problem(message, file=str(path), line=line, column=column)) from None


def _at(named: Node | None, path: Path, message: str) -> Problem:
    return Problem(message, file=str(path)) if named is None else place(Problem(message, key="base"), named.mark)
