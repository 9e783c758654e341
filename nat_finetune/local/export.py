"""A trained model as a folder that plain transformers or peft loads, without nat-finetune."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nat_finetune.errors import ConfigError, OutputError, Problem
from nat_finetune.local.scores import bare_model

_BASE_LAYER = ".base_layer"


def export_merged(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write model and tokenizer as safetensors; an adapter is added into the weights. The model itself is not changed.

    Raises:
        OutputError: the folder is not empty, or can't be written.
    """
    _write(folder, lambda: _save(bare_model(model), folder, state_dict=merged_weights(model)), tokenizer)


def export_adapter(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write the LoRA adapter in peft's format.

    Raises:
        ConfigError: all weights were trained, so there is no adapter.
        OutputError: the folder is not empty, or can't be written.
    """
    from peft import PeftModel

    if not isinstance(model, PeftModel):
        raise ConfigError(Problem("all weights were trained: there is no adapter to export", hint="export the merged model"))
    _write(folder, lambda: model.save_pretrained(str(folder), safe_serialization=True), tokenizer)


@torch.no_grad()
def merged_weights(model: Any) -> dict[str, Tensor]:
    """The weights of the plain model: each layer with an adapter has its product added, in float32, then rounded."""
    from peft.tuners.lora import LoraLayer

    base = bare_model(model)
    adapted = {name: module for name, module in base.named_modules() if isinstance(module, LoraLayer)}
    weights: dict[str, Tensor] = {}
    for name, value in base.state_dict().items():
        owner, _, leaf = name.rpartition(".")
        owner = owner.removesuffix(_BASE_LAYER)
        if "lora_" in name:
            continue
        layer = adapted.get(owner)
        if layer is not None and leaf == "weight":
            weights[f"{owner}.{leaf}"] = _merged(layer, value)
        else:
            weights[f"{owner}.{leaf}" if owner else leaf] = value
    return weights


def _merged(layer: Any, weight: Tensor) -> Tensor:
    deltas = [layer.get_delta_weight(adapter).float() for adapter in layer.active_adapters]
    return torch.stack([weight.float(), *deltas]).sum(0).to(weight.dtype)


def _save(base: Any, folder: Path, *, state_dict: dict[str, Tensor]) -> None:
    base.save_pretrained(str(folder), state_dict=state_dict, safe_serialization=True)


def _write(folder: Path, save: Callable[[], None], tokenizer: Any) -> None:
    if folder.exists() and any(folder.iterdir()):
        raise OutputError(f"{folder} is not empty: give a folder that does not exist yet")
    existed = folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save()
        tokenizer.save_pretrained(str(folder))
    except OSError as error:
        if not existed:
            shutil.rmtree(folder, ignore_errors=True)
        raise OutputError(f"can't write {folder}: {error}; free space or give another folder") from error
