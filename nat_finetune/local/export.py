"""A trained model as a folder that plain transformers or peft loads, without nat-finetune."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from nat_finetune.errors import BackendError, OutputError
from nat_finetune.local.policy import LocalPolicy
from nat_finetune.local.scores import bare_model

_BASE_LAYER = ".base_layer"


def export_merged(policy: LocalPolicy, folder: Path) -> None:
    """Write model and tokenizer as safetensors; an adapter is added into the weights. The policy itself is not changed.

    Raises:
        OutputError: the folder is not empty, or can't be written.
    """
    base, weights = bare_model(policy.model), merged_weights(policy.model)

    def save() -> None:
        base.save_pretrained(str(folder), state_dict=weights, safe_serialization=True)
        if base.config.tie_word_embeddings and _untied(base):
            config = copy.deepcopy(base.config)
            config.tie_word_embeddings = False  # or a reader takes the one for the other
            config.save_pretrained(str(folder))

    _write(policy, folder, save)


def export_base(policy: LocalPolicy, folder: Path) -> None:
    """Write the model below its LoRA adapter, and the tokenizer; where all weights train, the model as it is.

    Raises:
        OutputError: the folder is not empty, or can't be written.
    """
    base, weights = bare_model(policy.model), merged_weights(policy.model, adapters=False)
    _write(policy, folder, lambda: base.save_pretrained(str(folder), state_dict=weights, safe_serialization=True))


def export_adapter(policy: LocalPolicy, folder: Path) -> None:
    """Write the LoRA adapter in peft's format.

    Raises:
        BackendError: all weights were trained, so there is no adapter.
        OutputError: the folder is not empty, or can't be written.
    """
    from peft import PeftModel

    model = policy.model
    if not isinstance(model, PeftModel):
        raise BackendError("all weights were trained, so there is no adapter: export the merged model")
    _write(policy, folder, lambda: model.save_pretrained(str(folder), safe_serialization=True))


@torch.no_grad()
def merged_weights(model: Any, *, adapters: bool = True) -> dict[str, Tensor]:
    """The weights of the plain model: each layer with an adapter has its product added, in float32, then rounded.

    Without `adapters` they are left out: the weights below.
    """
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
        if adapters and layer is not None and leaf == "weight":
            weights[f"{owner}.{leaf}"] = _merged(layer, value)
        else:
            weights[f"{owner}.{leaf}" if owner else leaf] = value
    return weights


def _untied(base: Any) -> bool:
    """Whether an adapter sets the output layer apart from the embedding."""
    from peft.tuners.lora import LoraLayer

    return any(isinstance(module, LoraLayer) for module in (base.get_input_embeddings(), base.get_output_embeddings()))


def _merged(layer: Any, weight: Tensor) -> Tensor:
    deltas = [layer.get_delta_weight(adapter).float() for adapter in layer.active_adapters]
    return torch.stack([weight.float(), *deltas]).sum(0).to(weight.dtype)


def _write(policy: LocalPolicy, folder: Path, save: Callable[[], None]) -> None:
    if folder.exists() and any(folder.iterdir()):
        raise OutputError(f"{folder} is not empty: give a folder that does not exist yet")
    existed = folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save()
        policy.tokenizer.save_pretrained(str(folder))
    except (OSError, SafetensorError) as error:
        if not existed:
            shutil.rmtree(folder, ignore_errors=True)
        raise OutputError(f"can't write {folder}: {error}; free space or give another folder") from error
