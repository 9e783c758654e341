"""The blocks as updates run them: hidden states and all gradients of transformers' own modules."""

from __future__ import annotations

import logging

import pytest
import torch

from nat_finetune.data.layout import Part
from nat_finetune.local.branches import Branches
from nat_finetune.local.lora import attach_lora
from nat_finetune.local.scores import bare_model
from nat_finetune.local.settings import LoraSettings
from nat_finetune.local.trained_blocks import TrainedBlocks, trained_blocks
from tests.fixtures.models import tiny_model

KINDS = ("llama", "mistral", "qwen2", "qwen3")
LENGTH = 23  # longer than Mistral's window of 16
IDS = (torch.arange(LENGTH) * 11 + 5)[None] % 300
POSITIONS = torch.arange(LENGTH)[None]
WANTED = torch.tensor([3, 4, 9, 15, LENGTH - 1])


def prepared(kind, lora=None, *, tied=True):
    """A tiny model in which nothing is 0 or 1 that could hide a fault: biases, norms and adapters are drawn."""
    model, _ = tiny_model(kind, tied=tied)
    if lora is not None:
        model = attach_lora(model, lora, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith("bias") or "norm" in name or "lora_B" in name:
                value += torch.randn(value.shape, generator=generator) * 0.2
    return model


def by_blocks(model):
    blocks = TrainedBlocks(bare_model(model).get_decoder())
    attention = Branches([Part(0, LENGTH, 0, LENGTH, causal=True)], POSITIONS)
    return blocks.hidden(IDS, POSITIONS, attention, WANTED)


def by_modules(model):
    return bare_model(model).get_decoder()(input_ids=IDS, use_cache=False).last_hidden_state[:, WANTED]


def outcome(model, run):
    hidden = run(model)
    logits = bare_model(model).get_output_embeddings()(hidden)  # tied: the embedding's gradient has two parts
    logits.log_softmax(-1).sin().mean().backward()
    return hidden.detach(), {name: value.grad for name, value in model.named_parameters() if value.grad is not None}


def held(kind, run=by_blocks, **options):
    """Hidden states and gradients are those of the modules of an equal model, as they were loaded."""
    expected_hidden, expected = outcome(prepared(kind, **options), by_modules)
    hidden, found = outcome(prepared(kind, **options), run)
    torch.testing.assert_close(hidden, expected_hidden, atol=1e-5, rtol=1e-5)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-5, rtol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_all_weights(kind):
    found = held(kind)
    biased = {name for name in found if name.endswith("bias")}
    assert bool(biased) == (kind == "qwen2")
    assert any("q_norm" in name for name in found) == (kind == "qwen3")
    held(kind, tied=False)


@pytest.mark.parametrize("kind", KINDS)
def test_adapters(kind):
    held(kind, lora=LoraSettings(rank=3, alpha=5.0))
    some = held(kind, lora=LoraSettings(rank=4, target_modules=("q_proj", "v_proj", "down_proj")))
    assert len(some) == 2 * 2 * 3


def test_nothing_goes_below_the_first_trained_weight():
    def frozen_below(model):
        for parameter in bare_model(model).get_decoder().layers[0].parameters():
            parameter.requires_grad_(False)
        return by_blocks(model)

    model = prepared("llama", LoraSettings(rank=4))
    [hidden, found] = outcome(model, frozen_below)
    assert hidden.requires_grad is False
    assert found
    assert all(".layers.1." in name for name in found)


def test_an_adapter_is_read_at_every_call():
    model = prepared("llama", LoraSettings(rank=4))
    blocks = TrainedBlocks(bare_model(model).get_decoder())
    attention = Branches([Part(0, LENGTH, 0, LENGTH, causal=True)], POSITIONS)

    def agree():
        hidden = blocks.hidden(IDS, POSITIONS, attention, WANTED)
        torch.testing.assert_close(hidden, by_modules(model), atol=1e-5, rtol=1e-5)
        return hidden

    with torch.no_grad():
        adapted = agree()
        with model.disable_adapter():
            plain = agree()
        assert (plain - adapted).abs().max() > 1e-2
        for name, value in model.named_parameters():
            if "lora_B" in name:
                value.mul_(2)
        assert (agree() - adapted).abs().max() > 1e-2
        model.merge_adapter()
        agree()


def test_an_adapter_that_came_later_counts():
    base, _ = tiny_model("llama")
    blocks = TrainedBlocks(base.get_decoder())
    model = attach_lora(base, LoraSettings(rank=4), seed=0)
    attention = Branches([Part(0, LENGTH, 0, LENGTH, causal=True)], POSITIONS)
    blocks.hidden(IDS, POSITIONS, attention).sum().backward()
    assert all(value.grad is not None for name, value in model.named_parameters() if "lora" in name)


def test_checkpointed_layers_keep_their_inputs_only():
    kept = {}
    for checkpointing in (False, True):
        model = prepared("qwen3", LoraSettings(rank=4))
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, sizes=sizes: sizes.append(x.numel()) or x, lambda x: x):
            hidden = by_blocks(model)
        kept[checkpointing] = sum(sizes)
        (gradient,) = torch.autograd.grad(hidden.sin().sum(), model.get_parameter(_LORA_B))
        kept[checkpointing, "gradient"] = gradient
    assert kept[True] < kept[False] / 4
    torch.testing.assert_close(kept[True, "gradient"], kept[False, "gradient"])


_LORA_B = "base_model.model.model.layers.0.mlp.down_proj.lora_B.default.weight"


def test_a_second_backward_pass_finds_the_same():
    """What is kept from the way there is not overwritten on the way back."""
    model = prepared("qwen3")
    hidden, weights = by_blocks(model), list(model.parameters())
    first, second = (torch.autograd.grad(hidden.sin().sum(), weights, retain_graph=True) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one, other, atol=0, rtol=0)


@pytest.mark.parametrize("fault", ["blocks", "dtype", "dropout", "activation", "wrong"])
def test_what_does_not_fit_runs_in_its_own_modules(fault, caplog, monkeypatch):
    model, _ = tiny_model("gemma3" if fault == "blocks" else "llama")
    expected = {"blocks": "its blocks are Gemma3", "dtype": "float32", "dropout": "plain LoRA", "activation": "gelu"}
    if fault == "dtype":
        model.bfloat16()
    if fault == "activation":
        model.config.hidden_act = "gelu"
    if fault == "dropout":
        attach_lora(model, LoraSettings(rank=2), seed=0)
        for layer in model.model.layers:
            layer.mlp.up_proj.lora_dropout["default"] = torch.nn.Dropout(0.1)
    if fault == "wrong":
        monkeypatch.setattr("nat_finetune.local.trained_steps.rotated", lambda states, cos, sin: states * cos)
    with caplog.at_level(logging.INFO):
        assert trained_blocks(model.get_decoder()) is None
    assert expected.get(fault, "would differ by") in caplog.text
