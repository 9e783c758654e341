"""How large a model is, read off the headers of its files: no weight is loaded, nothing is fetched."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from nat_finetune.errors import BackendError, Stage, StageError, boundary
from nat_finetune.local.source import Source, resolve_source

_OUTPUT_LAYERS = ("lm_head", "embed", "wte", "wpe", "output.weight", "token_embd")
_LONGEST_HEADER = 1 << 27


@dataclass(frozen=True, slots=True)
class ModelSize:
    """What memory depends on."""

    shapes: Mapping[str, tuple[int, ...]]
    """Of every stored tensor."""
    layers: int
    hidden: int
    kv_width: int
    """Values of all key heads of one layer at one position; values take as many."""
    vocabulary: int
    context: int | None
    """Tokens that the model was made for; None: it does not say."""

    @property
    def parameters(self) -> int:
        """All values of all tensors; tied ones are stored, and counted, once."""
        return sum(prod(shape) for shape in self.shapes.values())

    def adapter_parameters(self, rank: int, targets: str | tuple[str, ...]) -> int:
        """Values of a LoRA adapter: rank times (in + out) of each matrix it is attached to."""
        fitting = (shape for name, shape in self.shapes.items() if len(shape) == 2 and _fits(name, targets))
        return sum(rank * sum(shape) for shape in fitting)


def _fits(name: str, targets: str | tuple[str, ...]) -> bool:
    if isinstance(targets, str):
        return not any(part in name for part in _OUTPUT_LAYERS)
    return any(name.removesuffix(".weight").endswith(target) for target in targets)


def model_size(model: str, revision: str | None) -> ModelSize | None:
    """The size of what `llms.NAME.model` names; None where it is a hub id that is not on this machine.

    Raises:
        ConfigError: it names nothing that exists.
        BackendError: its files can't be understood.
    """
    source = resolve_source(model)
    if source.gguf_file is not None:
        return _gguf(Path(source.name) / source.gguf_file)
    folder = Path(source.name) if source.local else _cached(source, revision)
    if folder is None:
        return None
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise BackendError(f"{folder} has no safetensors file: weights are read from safetensors or GGUF only")
    try:
        with boundary(Stage.MODEL):
            shapes = {name: shape for file in files for name, shape in _header(file)}
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            return _size(shapes, config.get("text_config", config))
    except StageError as error:
        raise BackendError(f"model {model!r}: its files can't be understood: {error.error_type}: {error}") from error


def _cached(source: Source, revision: str | None) -> Path | None:
    """The folder of a hub id in the local cache; the network is not asked."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(source.name, "config.json", revision=revision)
    folder = Path(found).parent if isinstance(found, str) else None
    return folder if folder is not None and any(folder.glob("*.safetensors")) else None


def _header(file: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a safetensors file: eight bytes of length, then JSON."""
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        if length > _LONGEST_HEADER:
            raise ValueError(f"{file.name}: a header of {length:,} bytes is none")
        for name, about in json.loads(stream.read(length)).items():
            if name != "__metadata__":
                yield name, tuple(about["shape"])


def _size(shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any]) -> ModelSize:
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    head = config.get("head_dim") or hidden // heads
    return ModelSize(
        shapes=shapes,
        layers=config["num_hidden_layers"],
        hidden=hidden,
        kv_width=head * (config.get("num_key_value_heads") or heads),
        vocabulary=config["vocab_size"],
        context=config.get("max_position_embeddings"),
    )


def _gguf(file: Path) -> ModelSize:
    """The same from a GGUF file; its weights are dequantised when it is read, so shapes count, not bytes."""
    try:
        with boundary(Stage.MODEL):
            from gguf import GGUFReader

            reader = GGUFReader(file)
            shapes = {tensor.name: tuple(int(n) for n in tensor.shape) for tensor in reader.tensors}
            arch = reader.fields["general.architecture"].contents()

            def value(key: str) -> Any:
                field = reader.fields.get(f"{arch}.{key}")
                return None if field is None else field.contents()

            heads, hidden = value("attention.head_count"), value("embedding_length")
            return ModelSize(
                shapes=shapes,
                layers=value("block_count"),
                hidden=hidden,
                kv_width=(value("attention.key_length") or hidden // heads) * (value("attention.head_count_kv") or heads),
                vocabulary=shapes["token_embd.weight"][-1],
                context=value("context_length"),
            )
    except StageError as error:
        hint = ": pip install 'nat-finetune[gguf]'" if error.error_type == "ModuleNotFoundError" else ""
        raise BackendError(f"{file}: this GGUF file can't be read ({error.error_type}: {error}){hint}") from error
