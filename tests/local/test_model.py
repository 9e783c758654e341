"""Models come from folders, GGUF files and shipped packages without the hub, and what can't be loaded says why."""

from __future__ import annotations

import json

import pytest
import torch

from nat_finetune.errors import BackendError, ConfigError
from nat_finetune.local.model import load_model, pick_device, pick_dtype, weights_digest
from nat_finetune.local.source import resolve_source
from tests.fixtures.models import tiny_model


@pytest.fixture
def folder(tmp_path):
    model, tokenizer = tiny_model("llama")
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_folder_loads_with_its_weights_and_template(folder):
    loaded = load_model(str(folder))
    original, tokenizer = tiny_model("llama")
    assert weights_digest(original.state_dict().items()) == loaded.digest
    assert (loaded.dtype, loaded.device, loaded.model.training) == (torch.float32, torch.device("cpu"), False)
    assert loaded.tokenizer.chat_template == tokenizer.chat_template


def test_dtype_is_as_asked(folder):
    assert load_model(str(folder), dtype="bfloat16").model.dtype is torch.bfloat16


def test_the_digest_tells_weights_apart():
    model, _ = tiny_model("llama")
    before = weights_digest(model.state_dict().items())
    assert weights_digest(reversed(list(model.state_dict().items()))) == before
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1e-3
    assert weights_digest(model.state_dict().items()) != before


def test_without_a_chat_template_it_is_refused(folder):
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(BackendError, match="no chat template"):
        load_model(str(folder))


def test_pickled_weights_are_refused(folder):
    model, _ = tiny_model("llama")
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(BackendError, match="safetensors"):
        load_model(str(folder))


def test_damaged_weights_are_refused(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(BackendError, match="could not be loaded"):
        load_model(str(folder))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("./missing", "no such folder"),
        ("/missing/model", "no such folder"),
        ("a/b/c", "no such folder"),
        ("missing.gguf", "no such file"),
        ("builtin:missing", "no shipped policy is named 'missing'.*known:"),
    ],
)
def test_what_is_not_there_is_a_config_error(source, message):
    with pytest.raises(ConfigError, match=message):
        load_model(source)


def test_a_folder_of_something_else_is_named_for_what_it_is(tmp_path):
    with pytest.raises(ConfigError, match=r"no config\.json"):
        resolve_source(str(tmp_path))
    (tmp_path / "adapter_config.json").write_text(json.dumps({}))
    with pytest.raises(ConfigError, match="peft adapter"):
        resolve_source(str(tmp_path))


def test_only_a_hub_id_may_reach_the_hub(folder, tmp_path):
    assert resolve_source(str(folder)).local
    (tmp_path / "x.gguf").touch()
    assert resolve_source(str(tmp_path / "x.gguf")).local
    assert not resolve_source("owner/name").local
    with pytest.raises(BackendError, match="could not be fetched from the hub"):
        load_model("nobody/no-such-model")


def test_an_unreadable_gguf_file_says_so(tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"GGUF but not really")
    with pytest.raises(BackendError, match="could not be loaded"):
        load_model(str(tmp_path / "x.gguf"))


def test_auto_is_full_precision_on_the_cpu_and_half_elsewhere():
    assert pick_dtype("auto", torch.device("cpu")) is torch.float32
    assert pick_dtype("auto", torch.device("cuda")) is torch.bfloat16
    assert pick_dtype("float16", torch.device("cpu")) is torch.float16


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_a_config_error():
    assert pick_device("auto") == torch.device("cpu")
    with pytest.raises(ConfigError, match="'cuda:1' is not available"):
        pick_device("cuda:1")
