"""TRL's DPOTrainer takes exported files as they are: `load_dataset` on the folder, then two steps and an evaluation."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from nat_finetune.cli.main import main
from tests.fixtures.exports import lines, made_run, rollout
from tests.fixtures.models import tiny_model

TRL = os.environ.get("NAT_FINETUNE_TRL_PYTHON")

pytestmark = [
    pytest.mark.peer,
    pytest.mark.skipif(TRL is None, reason="NAT_FINETUNE_TRL_PYTHON names no Python with trl"),
]


def test_trl_trains_on_an_exported_folder(tmp_path):
    for part in tiny_model("llama"):
        part.save_pretrained(tmp_path / "model")
    run = made_run(tmp_path, [rollout(number) for number in range(10)])
    folder = tmp_path / "out"
    command = ["export-data", str(run), "--format", "trl", "--output", str(folder), "--validation-share", "0.2"]
    assert main(command) == 0
    script, out = Path(__file__).with_name("trl_data.py"), tmp_path / "found.json"
    done = subprocess.run(
        [TRL, str(script), str(folder), str(tmp_path / "model"), str(out)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "HF_HOME": str(tmp_path / "hf")},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    print(f"\n{found}")
    first = lines(folder / "train.jsonl")[0]
    said = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in first["prompt"])
    assert found["rows"] == {"train": 16, "validation": 4}
    assert found["prompt"] == said + "<|im_start|>assistant\n"
    assert found["chosen"] == first["chosen"][0]["content"] + "<|im_end|>\n"
    assert found["rejected"] == first["rejected"][0]["content"] + "<|im_end|>\n"
    assert found["loss"] == pytest.approx(0.6931, abs=0.05)  # ln 2 at the first step, a little less at the second
    assert found["eval_loss"] < 0.6931
