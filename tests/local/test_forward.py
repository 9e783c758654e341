"""The forward that is chosen agrees with the model, or none is."""

from __future__ import annotations

import logging

import pytest
import torch
from transformers import AutoModelForCausalLM, BertConfig, Gemma2Config, GPT2Config, MambaConfig

from nat_finetune.errors import BackendError
from nat_finetune.local.blocks import BlockForward
from nat_finetune.local.engine import Engine
from nat_finetune.local.forward import CausalForward, RecomputeForward, disagreement, forward_of
from nat_finetune.local.kv_cache import Extend
from tests.fixtures.models import ARCHITECTURES, tiny_model, tiny_tokenizer
from tests.local.harness import ask, prompts_of, true_logprobs, worst

SMALL = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 2, "initializer_range": 0.3}
HEADS = {"num_attention_heads": 4, "intermediate_size": 64}
UNUSUAL = {
    "gpt2": (GPT2Config(vocab_size=300, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3), CausalForward),
    "gemma2": (Gemma2Config(**SMALL, **HEADS, num_key_value_heads=2, head_dim=8, sliding_window=8), RecomputeForward),
    "mamba": (MambaConfig(**SMALL), RecomputeForward),
}


def random_model(config):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_usual_architectures_keep_keys_and_values(arch):
    kind = CausalForward if arch in ("gemma3", "phi3") else BlockForward
    assert isinstance(forward_of(tiny_model(arch)[0]), kind)


@torch.no_grad()
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_transformers_own_blocks_serve_every_usual_architecture(arch):
    model, _ = tiny_model(arch)
    assert disagreement(model, CausalForward(model)) < 1e-5


@pytest.mark.parametrize("name", UNUSUAL)
async def test_unusual_architectures_are_served_rightly(name, caplog):
    config, kind = UNUSUAL[name]
    model = random_model(config)
    with caplog.at_level(logging.WARNING, logger="nat_finetune"):
        forward = forward_of(model)
    assert isinstance(forward, kind)
    assert ("generation is slow" in caplog.text) == (kind is RecomputeForward)
    engine = Engine(forward, tiny_tokenizer(), max_batch=3)
    try:
        for index, prompt in enumerate(prompts_of(5, 2, 20, seed=8)):
            generation = await ask(engine, prompt, seed=index, max_tokens=5 + index)
            assert worst(generation.logprobs, true_logprobs(model, prompt, generation.completion_ids)) <= 1e-5
    finally:
        engine.close()


def test_a_model_that_reads_both_ways_is_refused():
    model = random_model(BertConfig(**SMALL, **HEADS, is_decoder=False))
    with pytest.raises(BackendError, match=r"BertLMHeadModel can't be sampled .* left to right"):
        forward_of(model)


@torch.no_grad()
def test_the_check_sees_a_wrong_cache(monkeypatch):
    model, _ = tiny_model("llama")
    forward = CausalForward(model)
    assert disagreement(model, forward) < 1e-5
    monkeypatch.setattr(
        Extend, "mask", lambda self, window, dtype: torch.zeros_like(self._places_B_T, dtype=dtype)[:, None, :, None]
    )
    assert disagreement(model, forward) > 1e-2
