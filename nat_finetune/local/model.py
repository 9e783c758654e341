"""Loading a causal language model and its tokenizer from a folder, a GGUF file, a shipped policy or the hub.

Weights come from safetensors or GGUF only: a pickle could run code. Only a hub id may reach the network.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

import torch

from nat_finetune.errors import BackendError, ConfigError, Problem, Stage, StageError, boundary
from nat_finetune.local.device import share_freed_memory
from nat_finetune.local.source import Source, resolve_source

DTypeName = Literal["auto", "float32", "bfloat16", "float16"]
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_SAMPLE = 1 << 16
"""Elements of one tensor that its digest looks at: an update moves them all, and 7 B weights would take half a minute."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to sample from, with its tokenizer."""

    model: Any
    """transformers' causal language model, in eval mode."""
    tokenizer: Any
    device: torch.device
    dtype: torch.dtype
    source: str
    """As the config names it."""
    digest: str


def load_model(source: str, *, dtype: DTypeName = "auto", device: str = "auto", revision: str | None = None) -> LoadedModel:
    """Load a model for sampling and training.

    Args:
        source: `builtin:NAME`, a folder with safetensors, a `.gguf` file, or a hub id.
        dtype: "auto" is bfloat16 on an accelerator and float32 on the CPU.
        device: "auto" is cuda, else mps, else cpu.
        revision: branch, tag or commit of a hub id.

    Raises:
        ConfigError: `source` names nothing that exists here.
        BackendError: what it names can't be loaded, or is no chat model.
    """
    place = resolve_source(source)
    torch_device = pick_device(device)
    torch_dtype = pick_dtype(dtype, torch_device)
    share_freed_memory()
    model, tokenizer = _read(place, source, torch_dtype, revision)
    if tokenizer.chat_template is None:
        raise BackendError(
            f"model {source!r} has no chat template, and workflows speak in messages: use an instruction-tuned model, or put "
            "a chat_template.jinja beside its tokenizer"
        )
    model = model.to(torch_device).eval()
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        device=torch_device,
        dtype=torch_dtype,
        source=source,
        digest=weights_digest(model.state_dict().items()),
    )


def pick_device(name: str) -> torch.device:
    """The torch device of a config's `device`.

    Raises:
        ConfigError: it is not there.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    device = torch.device(name)
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not present.get(device.type, False):
        raise ConfigError(Problem(f"device {name!r} is not available here", hint="use `device: auto`"))
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(Problem(f"device {name!r}: there are {torch.cuda.device_count()} CUDA devices, counted from 0"))
    return device


def pick_dtype(name: DTypeName, device: torch.device) -> torch.dtype:
    """The torch dtype of a config's `dtype`."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return _DTYPES[name]


def weights_digest(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Hash of named weights: names, shapes and evenly spaced elements of each. Tells versions apart; it is no checksum.

    Args:
        tensors: (name, tensor) pairs, such as `model.state_dict().items()`.
    """
    digest = blake2b(digest_size=16)
    for name, tensor in sorted(tensors, key=lambda item: item[0]):
        digest.update(f"{name}:{tuple(tensor.shape)}:{tensor.dtype}".encode())
        flat = tensor.detach().reshape(-1)
        stride = max(1, flat.numel() // _SAMPLE)
        digest.update(flat[::stride].to("cpu", torch.float32).contiguous().numpy().tobytes())
    return digest.hexdigest()


def _read(place: Source, source: str, dtype: torch.dtype, revision: str | None) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # it would write into the run's own display
    common: dict[str, Any] = {"local_files_only": place.local}
    if place.gguf_file is not None:
        common["gguf_file"] = place.gguf_file
    if revision is not None and not place.local:
        common["revision"] = revision
    weights = {} if place.gguf_file else {"use_safetensors": True}
    try:
        with boundary(Stage.MODEL):
            tokenizer = AutoTokenizer.from_pretrained(place.name, **common)
            model, loading = AutoModelForCausalLM.from_pretrained(
                place.name, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True, **weights, **common
            )
    except StageError as error:
        cause = error.__cause__ if error.__cause__ is not None else error
        raise BackendError(_unreadable(place, source, cause)) from cause
    _check_complete(source, loading)
    if place.gguf_file is not None:
        model = _plain_copy(model, dtype)
    return model, tokenizer


def _check_complete(source: str, loading: Mapping[str, Any]) -> None:
    """Refuse weights that transformers would make up at random, with no more than a line in its log."""
    lacking = sorted(loading["missing_keys"]) + sorted(
        f"{name} ({found} for {want})" for name, found, want in loading["mismatched_keys"]
    )
    if lacking:
        more = f" and {len(lacking) - 3} more" if len(lacking) > 3 else ""
        raise BackendError(
            f"model {source!r}: its files lack {len(lacking)} of the weights that its config.json calls for, or hold them in "
            f"another shape: {', '.join(lacking[:3])}{more}; get all of its files, from one and the same model"
        )


def _plain_copy(model: Any, dtype: torch.dtype) -> Any:
    """The same weights in a model that does not count as quantised: transformers and peft refuse to train the one read."""
    from transformers import AutoModelForCausalLM

    config = model.config
    del config.quantization_config
    copy = AutoModelForCausalLM.from_config(config, dtype=dtype)
    copy.load_state_dict(model.state_dict())
    copy.generation_config = model.generation_config
    return copy


def _unreadable(place: Source, source: str, error: BaseException) -> str:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if place.gguf_file is not None and isinstance(error, ImportError):
        return f"model {source!r}: reading GGUF needs the gguf package: pip install 'nat-finetune[gguf]' ({reason})"
    if place.local:
        return (
            f"model {source!r} could not be loaded from {place.name}: {reason}. Expected a decoder-only transformers model "
            "with safetensors (or GGUF) weights and its tokenizer"
        )
    return (
        f"model {source!r} is no folder here and could not be fetched from the hub: {reason}. Check the name, your network "
        "and HF_TOKEN, or give a folder or a .gguf file"
    )
