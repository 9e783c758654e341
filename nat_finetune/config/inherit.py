"""A config file and the files that it builds on: `base: other.yml`.

Mappings are merged key by key; lists and scalars replace what the base says, and so does an explicit `null`. The path is
relative to the file that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from nat_finetune.config.expand import expand
from nat_finetune.config.nodes import Mark, Node, parse
from nat_finetune.errors import ConfigError, Problem


@dataclass(frozen=True, slots=True)
class Source:
    """A config's tree and the files that it was read from, the named one first."""

    tree: Node
    files: tuple[Path, ...]


def read(path: Path, environment: Mapping[str, str], *, below: tuple[Path, ...] = (), named_at: Mark | None = None) -> Source:
    """Read a file and its bases.

    Raises:
        ConfigError: one is missing, not text, not YAML, or a base of itself.
    """
    if path.resolve() in [other.resolve() for other in below]:
        chain = " → ".join(str(other) for other in (*below, path))
        raise ConfigError(_at(named_at, path, f"base files in a circle: {chain}"))
    tree = parse(_text(path, named_at), str(path))
    if tree.value is None:
        raise ConfigError(Problem("the file is empty", file=str(path), line=1, column=1, hint="see configs/ for whole ones"))
    if not isinstance(tree.value, dict):
        found = tree.shown()
        raise ConfigError(Problem(f"expected a mapping of sections, found {found}", file=str(path), line=1, column=1))
    named = tree.value.get("base")
    if named is None:
        return Source(replace(tree, value={k: v for k, v in tree.value.items() if k != "base"}), (path,))
    named = expand(named, environment)
    if named.problem is not None:
        raise ConfigError(replace(named.problem, key="base"))
    if not isinstance(named.value, str):
        raise ConfigError(_at(named.mark, path, f"base takes the path of one file, found {named.shown()}"))
    base = read(path.parent / Path(named.value).expanduser(), environment, below=(*below, path), named_at=named.mark)
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


def _text(path: Path, named_at: Mark | None) -> str:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(_at(named_at, path, f"there is no file {path}")) from None
    except IsADirectoryError:
        raise ConfigError(_at(named_at, path, f"{path} is a folder, expected a YAML file")) from None
    except OSError as error:
        raise ConfigError(_at(named_at, path, f"{path} can't be read: {error.strerror}")) from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line, column = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        byte = data[error.start]
        raise ConfigError(
            Problem(f"not a UTF-8 text file: byte 0x{byte:02x}", file=str(path), line=line, column=column)
        ) from None


def _at(mark: Mark | None, path: Path, message: str) -> Problem:
    if mark is None:
        return Problem(message, file=str(path))
    return Problem(message, key="base", file=mark.file, line=mark.line, column=mark.column)
