"""The usual blocks without transformers' modules give what the model gives, also as it is trained."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from nat_finetune.errors import BackendError
from nat_finetune.local.blocks import BlockForward
from nat_finetune.local.engine import Engine
from nat_finetune.local.forward import disagreement, forward_of
from nat_finetune.local.lora import attach_lora
from nat_finetune.local.settings import LoraSettings
from tests.fixtures.models import tiny_model
from tests.local.harness import ask, prompts_of, true_logprobs, worst

BLOCKS = ("llama", "qwen2", "qwen3", "mistral")


@torch.no_grad()
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("arch", BLOCKS)
def test_it_gives_the_models_logprobs(arch, packed, monkeypatch):
    monkeypatch.setattr("nat_finetune.local.blocks.can_pack", lambda *_: packed)
    model, _ = tiny_model(arch)
    assert disagreement(model, BlockForward(model)) < 1e-5


@torch.no_grad()
def test_in_bfloat16_too():
    model = tiny_model("llama")[0].bfloat16()
    assert disagreement(model, BlockForward(model)) < 0.5


@pytest.mark.parametrize("arch", ["gemma3", "phi3"])
def test_other_blocks_are_left_to_transformers(arch):
    with pytest.raises(BackendError, match="its blocks are"):
        BlockForward(tiny_model(arch)[0])


async def test_an_adapter_that_is_trained_is_what_samples_next():
    """No reload, no restart: the next request after an update is sampled from the new weights."""
    base, tokenizer = tiny_model("llama")
    model = attach_lora(base, LoraSettings(rank=4), seed=0)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=0.05, fused=True)
    engine = Engine(forward_of(base), tokenizer)
    prompt, seen = prompts_of(1, 20, 30)[0], []
    try:
        for version in range(3):
            generation = await ask(engine, prompt, max_tokens=12)
            assert generation.policy_version == version
            assert worst(generation.logprobs, true_logprobs(model, prompt, generation.completion_ids)) <= 1e-5
            seen.append(generation.logprobs)
            with engine.exclusive():
                ids = torch.tensor([prompt])
                functional.cross_entropy(model(input_ids=ids).logits[0, :-1], ids[0, 1:]).backward()
                optimiser.step()
                optimiser.zero_grad()
                engine.use(engine._forward, version + 1)
    finally:
        engine.close()
    assert len(set(seen)) == 3
