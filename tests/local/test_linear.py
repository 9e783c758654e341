"""Linear layers by the fast product against torch's own, values and gradients, in real models."""

from __future__ import annotations

import logging

import pytest
import torch
from peft.tuners.lora.layer import Linear as LoraLinear
from torch.nn import functional

from nat_finetune.local import products as module
from nat_finetune.local.linear import linear, use_fast_linear
from nat_finetune.local.lora import attach_lora
from nat_finetune.local.products import fast_product
from nat_finetune.local.settings import LoraSettings
from tests.fixtures.models import ARCHITECTURES, tiny_model

IDS = torch.tensor([[5, 6, 7, 8, 9, 10, 11], [12, 5, 6, 3, 3, 4, 20]])


def outcome(model):
    """Logits and every gradient of a loss that all logits enter."""
    logits = model(input_ids=IDS, use_cache=False).logits
    logits.log_softmax(-1).sin().mean().backward()
    return logits.detach(), {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}


def prepared(arch, lora):
    model, _ = tiny_model(arch)
    if not lora:
        return model
    model = attach_lora(model, LoraSettings(rank=3, alpha=5.0), seed=0)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_B" in name:  # fresh ones are 0, and then nothing reaches A
                value.copy_(torch.randn(value.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
    return model


def first_linear(model):
    wanted = torch.nn.Linear if type(model).__name__ != "PeftModelForCausalLM" else LoraLinear
    return next(layer for layer in model.modules() if type(layer) is wanted)


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_models_give_the_same_logits_and_gradients(arch, lora):
    expected_logits, expected = outcome(prepared(arch, lora))
    fast = prepared(arch, lora)
    use_fast_linear(fast)
    use_fast_linear(fast)  # a second time changes nothing
    layer = first_linear(fast)
    assert layer(torch.ones(2, 3, layer.in_features)).grad_fn.name() == "_LinearBackward"
    logits, found = outcome(fast)
    torch.testing.assert_close(logits, expected_logits, atol=1e-5, rtol=1e-5)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-5, rtol=1e-5)


def test_an_adapter_that_is_switched_off_or_merged_is_not_added():
    plain, fast = prepared("llama", lora=True), prepared("llama", lora=True)
    use_fast_linear(fast)
    with torch.no_grad():
        with_adapter = plain(IDS).logits
        with plain.disable_adapter(), fast.disable_adapter():
            torch.testing.assert_close(fast(IDS).logits, plain(IDS).logits, atol=1e-5, rtol=1e-5)
            assert (plain(IDS).logits - with_adapter).abs().max() > 1e-2
        fast.merge_adapter()
        torch.testing.assert_close(fast(IDS).logits, with_adapter, atol=1e-5, rtol=1e-5)


def test_a_frozen_weight_does_not_keep_its_input():
    kept = []
    x = torch.randn(4, 6, requires_grad=True)
    for trains in (False, True):
        weight = torch.randn(5, 6, requires_grad=trains)
        with torch.autograd.graph.saved_tensors_hooks(lambda value: kept[-1].append(value) or value, lambda value: value):
            kept.append([])
            linear(x, weight)
    frozen, trained = ([tuple(value.shape) for value in values] for values in kept)
    assert frozen == [(5, 6)]
    assert sorted(trained) == [(4, 6), (5, 6)]


def test_a_bias_trains_alone():
    x, weight, bias = torch.randn(4, 6), torch.randn(5, 6), torch.zeros(5, requires_grad=True)
    linear(x, weight, bias).square().sum().backward()
    torch.testing.assert_close(bias.grad, 2 * (x @ weight.T).sum(0))


@pytest.mark.parametrize("fault", ["wrong", "absent"])
def test_torchs_own_product_stays_where_the_fast_one_is_not_right(fault, monkeypatch, caplog):
    def faulty(x, weight, bias):
        if fault == "absent":
            raise AttributeError("no such operator")
        return functional.linear(x, weight, bias) * 1.001

    monkeypatch.setattr(module, "onednn_linear", faulty)
    monkeypatch.setattr(module.platform, "machine", lambda: "x86_64")
    with caplog.at_level(logging.WARNING):
        assert fast_product.__wrapped__() is functional.linear
    assert {"wrong": "differs by", "absent": "no such operator"}[fault] in caplog.text


def test_other_types_and_empty_inputs_go_torchs_way():
    weight = torch.randn(5, 6)
    assert linear(torch.zeros(0, 6), weight).shape == (0, 5)
    half = linear(torch.ones(2, 6, dtype=torch.bfloat16), weight.bfloat16())
    assert half.dtype == torch.bfloat16
