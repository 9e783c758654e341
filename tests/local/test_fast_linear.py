"""Fast linear layers compute what the modules compute, and notice when those change."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from nat_finetune.errors import BackendError
from nat_finetune.local.fast_linear import FastLinear, can_pack
from nat_finetune.local.products import fast_product

needs_onednn = pytest.mark.skipif(fast_product() is nn.functional.linear, reason="oneDNN's product is not used on this machine")
PACKED = [pytest.param(True, marks=needs_onednn), False]


def layers(count: int = 2, *, bias: bool = False) -> list[nn.Linear]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return [nn.Linear(12, 8 + 4 * index, bias=bias and index == 0) for index in range(count)]


def adapted(**settings):
    """A module with two adapted linear layers, and their plain modules' names."""
    from peft import LoraConfig, get_peft_model

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = get_peft_model(
            nn.Sequential(*layers(1)), LoraConfig(r=4, lora_alpha=8, target_modules=["0"], init_lora_weights=False, **settings)
        )
    return model.eval(), model.base_model.model[0]


def worst(fast: FastLinear, modules, *, changed: bool = False) -> float:
    x = torch.linspace(-1, 1, 36).view(3, 12)
    fast.refresh(changed=changed)
    with torch.inference_mode():
        return float((fast(x) - torch.cat([module(x) for module in modules], -1)).abs().max())


@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("bias", [True, False])
def test_outputs_stand_side_by_side(packed, bias):
    modules = layers(bias=bias)
    assert worst(FastLinear(modules, packed=packed), modules) < 1e-6


@pytest.mark.parametrize("packed", PACKED)
def test_an_adapter_is_applied_switched_off_and_followed_as_it_is_trained(packed):
    model, layer = adapted()
    fast = FastLinear([layer], packed=packed)
    assert worst(fast, [layer]) < 1e-6
    with model.disable_adapter():
        assert worst(fast, [layer]) < 1e-6
        assert worst(fast, [layer.base_layer]) < 1e-6
    assert worst(fast, [layer.base_layer]) > 1e-2
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.1, fused=True)
    layer(torch.ones(1, 12)).sum().backward()
    optimiser.step()
    assert worst(fast, [layer], changed=True) < 1e-6


@needs_onednn
@pytest.mark.parametrize("how", ["load_state_dict", "swapped storage", "told"])
def test_changed_weights_are_seen(how):
    modules = layers(1)
    fast = FastLinear(modules, packed=True)
    worst(fast, modules)
    weight = modules[0].weight
    if how == "told":
        weight.grad = torch.ones_like(weight)
        torch.optim.AdamW([weight], lr=0.1, fused=True).step()
    elif how == "load_state_dict":
        modules[0].load_state_dict({"weight": torch.ones_like(weight)})
    else:
        weight.data = torch.ones_like(weight)
    assert worst(fast, modules, changed=how == "told") < 1e-6


def test_what_it_does_not_know_it_refuses():
    with pytest.raises(BackendError, match="Conv1d"):
        FastLinear([nn.Conv1d(1, 1, 1)], packed=False)
    with pytest.raises(BackendError, match="Linear"):
        FastLinear([adapted(use_dora=True)[1]], packed=False)


@needs_onednn
def test_packing_is_for_float32_on_a_cpu_with_room_for_a_copy():
    weight = torch.ones(1)
    assert can_pack(weight, 100, None)
    assert can_pack(weight, 100, 800)
    assert not can_pack(weight, 100, 799)
    assert not can_pack(weight.bfloat16(), 100, None)
