"""One DPO step is TRL's: loss and gradients on the same batch of tokens, every pair weighing the same.

TRL lives in an environment of its own, whose Python NAT_FINETUNE_TRL_PYTHON names.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from nat_finetune.local.optimise import optimise
from nat_finetune.local.pair_objective import PairObjective
from nat_finetune.local.pair_rows import completion_ids, encode_pairs
from nat_finetune.local.settings import LoopSettings, PreferenceSettings
from tests.fixtures.models import tiny_model
from tests.fixtures.training import learner_of, pair, tiny_policy

TRL = os.environ.get("NAT_FINETUNE_TRL_PYTHON")
PAIRS = [
    pair("the quick brown fox", "o"),
    pair("lazy", "the quick brown fox jumps over"),
    pair("win", "lose", text="move 0 1 2 3"),
    pair("draw a square", "lose", text="move 0 1 2 3"),
]

pytestmark = [
    pytest.mark.peer,
    pytest.mark.skipif(TRL is None, reason="NAT_FINETUNE_TRL_PYTHON names no Python with trl"),
]


def other_weights():
    """A policy that has moved away from its reference."""
    model, _ = tiny_model("llama", 5)
    return model


def ours(loss, beta):
    """Loss, gradients and the rows that they are of."""
    with tiny_policy() as policy:
        learner, kept = learner_of(policy, reference=True), {}
        learner.weights.load(dict(other_weights().named_parameters()))

        def step():
            kept.update({name: master.grad.clone() for name, master in learner.weights.masters.items()})
            return {}

        learner.optimiser.step = step  # the gradient is what is compared
        objective = PairObjective(encode_pairs(PAIRS, policy.format, max_length=None), PreferenceSettings(loss=loss, beta=beta))
        made = optimise(learner, objective, LoopSettings(), seed=0, progress=lambda s: None, cancelled=lambda: False)
        rows = []
        for p in PAIRS:
            (prompt, chosen), (_, rejected) = (
                completion_ids(p.context, t, policy.format, where="") for t in (p.chosen, p.rejected)
            )
            assert chosen[-1] == rejected[-1] == policy.tokenizer.eos_token_id != policy.tokenizer.pad_token_id
            rows.append({"prompt_ids": prompt, "chosen_ids": chosen, "rejected_ids": rejected})
        return made.curve[0]["loss"], kept, rows


@pytest.mark.parametrize(("loss", "beta"), [("sigmoid", 0.1), ("ipo", 0.2)])
def test_one_step_has_trls_loss_and_gradients(tmp_path, loss, beta):
    value, gradients, rows = ours(loss, beta)
    reference, tokenizer = tiny_model("llama")
    for name, model in (("policy", other_weights()), ("reference", reference)):
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    (tmp_path / "settings.json").write_text(json.dumps({"loss": loss, "beta": beta}))
    script = Path(__file__).with_name("trl_dpo.py")
    done = subprocess.run([TRL, str(script), str(tmp_path)], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    theirs = load_file(tmp_path / "gradients.safetensors")
    assert value == pytest.approx(json.loads((tmp_path / "loss.json").read_text()), abs=1e-5)
    assert theirs.keys() == gradients.keys()
    worst = max(float((theirs[name] - gradients[name]).abs().max()) for name in theirs)
    largest = max(float(values.abs().max()) for values in theirs.values())
    print(f"\n{loss}: loss {value:.7f}, largest gradient {largest:.4g}, largest difference {worst:.2g}")
    assert worst < 1e-5 * max(1.0, largest)
    assert largest > 1e-3
    torch.testing.assert_close(gradients, theirs, atol=1e-5, rtol=1e-5)
