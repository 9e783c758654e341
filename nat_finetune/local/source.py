"""Where the files of a model are: a shipped policy, a folder, a GGUF file or the hub. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path

from nat_finetune.errors import ConfigError, Problem

POLICY_GROUP = "nat_finetune.policies"
BUILTIN = "builtin:"


@dataclass(frozen=True, slots=True)
class Source:
    """Where the files of a model are."""

    name: str
    """What transformers is asked for: a folder or a hub id."""
    gguf_file: str | None
    local: bool
    """Whether the hub must not be asked."""


def resolve_source(source: str) -> Source:
    """Tell the four kinds of sources apart.

    Raises:
        ConfigError: an unknown shipped policy, or a path that does not exist.
    """
    if source.startswith(BUILTIN):
        return Source(str(builtin_folder(source.removeprefix(BUILTIN))), None, local=True)
    path = Path(source).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ConfigError(Problem(f"model {source!r}: there is no such file", hint=f"looked in {path.absolute().parent}"))
        return Source(str(path.parent), path.name, local=True)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ConfigError(Problem(f"model {source!r}: the folder has no config.json", hint=_folder_hint(path)))
        return Source(str(path), None, local=True)
    if path.is_absolute() or source.startswith((".", "~")) or source.count("/") > 1:
        raise ConfigError(Problem(f"model {source!r}: there is no such folder", hint=f"looked for {path.absolute()}"))
    return Source(source, None, local=False)


def _folder_hint(path: Path) -> str:
    if (path / "adapter_config.json").is_file():
        return "it holds a peft adapter: name a merged model (`nat-finetune export --format merged` writes one)"
    return "expected a folder as written by save_pretrained: config.json, model.safetensors, tokenizer.json"


def builtin_folder(name: str) -> Path:
    """The folder of a shipped policy (entry points of the group `nat_finetune.policies`).

    Raises:
        ConfigError: no installed package ships it.
    """
    found = {point.name: point.value for point in entry_points(group=POLICY_GROUP)}
    if name not in found:
        raise ConfigError(
            Problem(f"no shipped policy is named {name!r}", hint=f"known: {', '.join(sorted(found)) or 'none installed'}")
        )
    return Path(str(files(found[name])))
