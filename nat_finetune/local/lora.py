"""Low-rank adapters (LoRA, arXiv:2106.09685) through peft."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch

from nat_finetune.errors import ConfigError, Problem
from nat_finetune.local.settings import ALL_LINEAR, LoraSettings


def attach_lora(model: Any, settings: LoraSettings, *, seed: int) -> Any:
    """Put a fresh adapter, which changes nothing yet, into the model's layers; returns the peft model around it.

    The model's own weights no longer train. Adapter weights are float32 also in a bf16 model. Dropout is not offered: the
    model that samples must be the model that is trained.

    Raises:
        ConfigError: no layer's name ends in one of `target_modules`.
    """
    from peft import LoraConfig, get_peft_model

    targets = settings.target_modules
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=0.0,
        target_modules=targets if isinstance(targets, str) else list(targets),
        task_type="CAUSAL_LM",
    )
    try:
        # peft draws from the global generator, and what it draws is replaced below; it also asks transformers for a property
        # under its old name, which is nothing that a user could mend.
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
            adapted = get_peft_model(model, config)
    except ValueError as error:
        raise ConfigError(Problem(str(error), key="lora.target_modules", hint=f"`{ALL_LINEAR}` fits every model")) from error
    generator = torch.Generator().manual_seed(seed)
    for name, weight in adapted.named_parameters():
        if "lora_A" in name:
            bound = math.sqrt(1 / weight.shape[-1])  # as peft: kaiming_uniform with a = sqrt(5)
            fresh = torch.empty(weight.shape, dtype=torch.float32).uniform_(-bound, bound, generator=generator)
            weight.data.copy_(fresh)
        elif "lora_embedding_B" in name:  # of an embedding it is A that is 0; as peft
            weight.data.copy_(torch.empty(weight.shape, dtype=torch.float32).normal_(generator=generator))
    return adapted.eval()
