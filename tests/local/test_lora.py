from __future__ import annotations

import pytest
import torch

from nat_finetune.errors import ConfigError
from nat_finetune.local.lora import attach_lora
from nat_finetune.local.settings import LoraSettings
from tests.fixtures.models import ARCHITECTURES, tiny_model

IDS = torch.tensor([[5, 6, 7, 8, 9]])


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_fresh_adapter_changes_nothing_and_trains_alone(arch):
    model, _ = tiny_model(arch)
    with torch.no_grad():
        before = model(IDS).logits
        adapted = attach_lora(model, LoraSettings(rank=2), seed=0)
        assert torch.equal(adapted(IDS).logits, before)
    trained = {name for name, parameter in adapted.named_parameters() if parameter.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)
    assert not any("lm_head" in name for name in trained)
    assert not adapted.training


def test_adapters_are_drawn_by_their_own_seed():
    def weights(seed):
        model, _ = tiny_model("llama")
        return {
            n: p.detach()
            for n, p in attach_lora(model, settings, seed=seed).named_parameters()
            if "lora_A" in n or "lora_embedding_B" in n
        }

    settings = LoraSettings(rank=2, target_modules=("embed_tokens",))
    torch.manual_seed(1)
    [one] = weights(1).values()
    torch.manual_seed(2)
    [same], [other] = weights(1).values(), weights(2).values()
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    settings = LoraSettings(rank=2)
    state = torch.random.get_rng_state()
    one, same, other = weights(1), weights(1), weights(2)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert all(not torch.equal(one[name], other[name]) for name in one)
    assert torch.equal(torch.random.get_rng_state(), state)
    for weight in one.values():
        bound = weight.shape[1] ** -0.5
        assert bound / 2 < weight.abs().max() <= bound


def test_only_named_modules_are_adapted():
    model, _ = tiny_model("llama")
    adapted = attach_lora(model, LoraSettings(rank=2, target_modules=("q_proj",)), seed=0)
    trained = [name for name, parameter in adapted.named_parameters() if parameter.requires_grad]
    assert len(trained) == 4
    assert all("q_proj" in name for name in trained)


def test_a_name_that_fits_nothing_is_refused():
    model, _ = tiny_model("llama")
    with pytest.raises(ConfigError, match=r"lora\.target_modules: .*no_such.*all-linear"):
        attach_lora(model, LoraSettings(target_modules=("no_such",)), seed=0)


def test_the_adapter_of_a_narrow_model_is_float32():
    model, _ = tiny_model("llama")
    adapted = attach_lora(model.bfloat16(), LoraSettings(rank=2), seed=0)
    assert {p.dtype for p in adapted.parameters() if p.requires_grad} == {torch.float32}
