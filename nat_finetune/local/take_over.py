"""Weights that another process has trained, back into the policy: a transformers folder, or a peft adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from nat_finetune.errors import BackendError
from nat_finetune.local.model import load_model, weights_digest
from nat_finetune.local.policy import LocalPolicy
from nat_finetune.types import PolicyRef

ADAPTER = "adapter_model.safetensors"


def take_over(policy: LocalPolicy, folder: Path, *, version: int) -> PolicyRef:
    """Sample from what was trained from now on, as that version of the policy.

    Args:
        policy: has an adapter of the same shape already where the folder holds one.
        folder: as `save_pretrained` writes it: a whole model, or a LoRA adapter.
        version: of the policy.

    Raises:
        BackendError: the folder can't be loaded, or is not of this policy.
    """
    if (folder / ADAPTER).is_file():
        _load_adapter(policy, folder)
    else:
        loaded = load_model(str(folder), dtype=_name(policy), device=str(policy.device))
        if type(loaded.model) is not type(policy.model):
            raise BackendError(f"{folder} holds a {type(loaded.model).__name__}, the policy is a {type(policy.model).__name__}")
        policy.attach(loaded.model)
    return policy.restored(version, weights_digest(policy.model.state_dict().items()))


def _name(policy: LocalPolicy) -> Any:
    return str(policy.dtype).removeprefix("torch.")


def _load_adapter(policy: LocalPolicy, folder: Path) -> None:
    """Copy an adapter's weights into those of the policy's own."""
    from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict

    model = policy.model
    if not isinstance(model, PeftModel):
        raise BackendError(f"{folder} holds a LoRA adapter, and the policy has none: set `lora` as it was trained with")
    try:
        weights = load_file(folder / ADAPTER)
    except (OSError, SafetensorError) as error:
        raise BackendError(f"{folder / ADAPTER} can't be read: {error}") from error
    own = get_peft_model_state_dict(model)
    if {name: value.shape for name, value in own.items()} != {name: value.shape for name, value in weights.items()}:
        raise BackendError(f"{folder} holds another adapter than the policy's: set `lora` as it was trained with")
    with policy.exclusive():
        set_peft_model_state_dict(model, weights)
