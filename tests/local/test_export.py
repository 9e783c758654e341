from __future__ import annotations

import json

import pytest
import torch
from peft import PeftModel
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from nat_finetune.errors import BackendError, OutputError
from nat_finetune.local.export import export_adapter, export_merged
from nat_finetune.local.model import load_model
from nat_finetune.local.settings import LoraSettings
from tests.fixtures.models import ARCHITECTURES, tiny_model
from tests.fixtures.training import learner_of, tiny_policy

IDS = torch.tensor([[5, 6, 7, 8, 9]])


def shaken(learner):
    """Change every trained weight a little."""
    generator = torch.Generator().manual_seed(3)
    tensors = {
        name: value + 0.1 * torch.randn(value.shape, generator=generator) for name, value in learner.weights.tensors().items()
    }
    learner.weights.load(tensors)


@torch.no_grad()
def logits(model):
    return model(IDS).logits


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("tied", [False, True])
def test_plain_transformers_and_peft_load_what_was_trained(arch, tied, tmp_path):
    base, tokenizer = tiny_model(arch, tied=tied)
    untrained = logits(base)
    base.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    with tiny_policy(arch, tied=tied) as policy:
        shaken(learner_of(policy, lora=LoraSettings(rank=4, alpha=8)))
        trained = logits(policy.model)
        export_merged(policy, tmp_path / "merged")
        export_adapter(policy, tmp_path / "adapter")
        assert torch.equal(logits(policy.model), trained)  # exporting changes nothing
    with (
        safe_open(tmp_path / "merged" / "model.safetensors", "pt") as saved,
        safe_open(tmp_path / "base" / "model.safetensors", "pt") as original,
    ):
        assert set(saved.keys()) == set(original.keys())
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(logits(merged), trained, atol=2e-5, rtol=0)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    assert torch.equal(logits(plain), untrained)
    adapted = PeftModel.from_pretrained(plain, tmp_path / "adapter")
    torch.testing.assert_close(logits(adapted), trained, atol=1e-5, rtol=0)  # by another matrix product than the policy's
    assert (trained - untrained).abs().max() > 0.1
    assert AutoTokenizer.from_pretrained(tmp_path / "merged").chat_template == tokenizer.chat_template
    assert "nat_finetune" not in (tmp_path / "merged" / "config.json").read_text()


def test_an_adapter_on_the_output_layer_unties_it_from_the_embedding(tmp_path):
    with tiny_policy(tied=True) as policy:
        with pytest.warns(UserWarning, match="tie_word_embeddings"):
            shaken(learner_of(policy, lora=LoraSettings(rank=4, alpha=8, target_modules=("lm_head",))))
        trained = logits(policy.model)
        export_merged(policy, tmp_path / "merged")
        assert policy.model.config.tie_word_embeddings  # exporting changes nothing
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["tie_word_embeddings"] is False
    merged = load_model(str(tmp_path / "merged")).model
    torch.testing.assert_close(logits(merged), trained, atol=2e-5, rtol=0)


def test_all_weights_trained_and_loaded_as_a_policy_again(tmp_path):
    with tiny_policy() as policy:
        shaken(learner_of(policy))
        trained = logits(policy.model)
        export_merged(policy, tmp_path / "merged")
        with pytest.raises(BackendError, match="there is no adapter: export the merged model"):
            export_adapter(policy, tmp_path / "adapter")
    assert torch.equal(logits(load_model(str(tmp_path / "merged")).model), trained)
    assert not (tmp_path / "adapter").exists()


def test_a_folder_with_content_is_left_alone(tmp_path):
    (tmp_path / "mine").write_text("x")
    with tiny_policy() as policy, pytest.raises(OutputError, match="is not empty"):
        export_merged(policy, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_an_adapter_says_what_it_is(tmp_path):
    with tiny_policy() as policy:
        learner_of(policy, lora=LoraSettings(rank=4, alpha=8))
        export_adapter(policy, tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (4, 8, 0.0)
    assert "lm_head" not in config["target_modules"]
