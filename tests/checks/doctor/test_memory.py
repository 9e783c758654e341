"""What memory a model takes, held against figures worked out by hand."""

import gguf
import numpy as np
import pytest

from nat_finetune.adapters.local_settings import LocalTrainerAdapterConfig
from nat_finetune.checks.doctor.memory import Device, memory_parts
from nat_finetune.checks.doctor.weights import model_size
from nat_finetune.errors import BackendError
from nat_finetune.llms.local import LocalLLMConfig
from tests.checks.doctor.faults import header_only
from tests.fixtures.models import ARCHITECTURES, tiny_model

MATRICES = 4 * 4 * 1024 * 1024 + 4 * 3 * 4 * 1024 * 1024  # four layers: attention, then the gated MLP
PARAMETERS = 32_000 * 1024 + MATRICES
GPU = Device("cuda", 80 * 2**30)


def parts(folder, device=GPU, concurrency=32, tokens=512, **settings):
    size = model_size(str(header_only(folder / "model", hidden=1024, layers=4)), None)
    algorithm = settings.pop("algorithm", {"name": "grpo"})
    adapter = LocalTrainerAdapterConfig(algorithm=algorithm, learning_rate=1e-5, **settings)
    llm = LocalLLMConfig(model="m")
    return size, memory_parts(size, llm, adapter, device, concurrency=concurrency, tokens=tokens)


def test_all_weights_in_bfloat16(tmp_path):
    size, found = parts(tmp_path)
    assert size.parameters == PARAMETERS
    assert found["weights"] == 2 * PARAMETERS
    assert found["trained weights in float32"] == 4 * PARAMETERS
    assert found["gradients"] == 6 * PARAMETERS  # the model's in 16 bits, added up in 32
    assert found["AdamW"] == 8 * PARAMETERS
    assert "reference" not in found  # the preset has no KL
    assert found["keys and values"] == 2 * 4 * (8 * 32) * 2 * 32 * 512  # 8 of 32 heads of 32 values, 4 layers


def test_an_adapter_trains_little_and_needs_no_copy(tmp_path):
    _, found = parts(tmp_path, lora={"rank": 16}, algorithm={"name": "dpo"})
    trained = 4 * 16 * (4 * 2 * 1024 + 3 * 5 * 1024)
    assert found["trained weights in float32"] == found["gradients"] == 4 * trained
    assert found["AdamW"] == 8 * trained
    assert "reference" not in found


def test_a_reference_of_all_weights_and_float32_on_a_cpu(tmp_path):
    _, found = parts(tmp_path, device=Device("cpu", None), algorithm={"name": "dpo"})
    assert found["reference"] == found["weights"] == 4 * PARAMETERS
    assert "trained weights in float32" not in found


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_headers_count_what_the_model_has(arch, tmp_path):
    model, _ = tiny_model(arch)
    model.save_pretrained(tmp_path)
    assert model_size(str(tmp_path), None).parameters == sum(p.numel() for p in model.parameters())


def test_a_gguf_file(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    for add, value in (
        (writer.add_block_count, 1),
        (writer.add_embedding_length, 64),
        (writer.add_head_count, 4),
        (writer.add_head_count_kv, 2),
        (writer.add_context_length, 128),
    ):
        add(value)
    writer.add_tensor("token_embd.weight", np.zeros((100, 64), np.float32))
    writer.add_tensor("blk.0.attn_q.weight", np.zeros((64, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    size = model_size(str(tmp_path / "m.gguf"), None)
    assert (size.parameters, size.layers, size.hidden, size.kv_width, size.vocabulary) == (164 * 64, 1, 64, 32, 100)
    assert size.adapter_parameters(8, "all-linear") == 8 * 128


def test_files_that_are_none(tmp_path):
    folder = header_only(tmp_path / "model", hidden=1024, layers=1)
    (folder / "model.safetensors").write_bytes(b"none of this")
    with pytest.raises(BackendError, match="can't be understood"):
        model_size(str(folder), None)
    (folder / "model.safetensors").unlink()
    with pytest.raises(BackendError, match="no safetensors file"):
        model_size(str(folder), None)
