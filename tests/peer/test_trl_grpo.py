"""One GRPO step equals that of TRL's GRPOTrainer: loss and every gradient, on the same tokens.

TRL lives in an environment of its own: `make test-peer` makes it, or set NAT_FINETUNE_TRL_PYTHON to its Python.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file

from nat_finetune.algorithms.presets import PRESETS
from nat_finetune.local.group_objective import GroupObjective
from nat_finetune.local.group_rows import encode_groups
from nat_finetune.local.optimise import optimise
from nat_finetune.local.settings import LoopSettings, PolicyGradientSettings
from nat_finetune.types import Group, RewardTerm, SamplingParams
from tests.fixtures.training import REWARD, learner_of, tiny_policy, trajectory

PYTHON = os.environ.get("NAT_FINETUNE_TRL_PYTHON")

pytestmark = [
    pytest.mark.peer,
    pytest.mark.skipif(PYTHON is None, reason="NAT_FINETUNE_TRL_PYTHON does not name a Python that has TRL"),
]

TOLERANCE = 1e-5
PROMPTS = ("move 5", "the quick brown fox jumps")
REWARDS = ((1.0, 0.0, 0.25, 1.0), (0.0, 0.5, 0.5, 2.0))
LENGTHS = ((6, 2, 9, 4), (3, 3, 8, 1))

GRPO = PRESETS["grpo"]
CASES = {
    "grpo": (GRPO, {}),
    "grpo, temperature 0.7": (GRPO, {"temperature": 0.7}),
    "grpo with KL": (replace(GRPO, kl_coefficient=0.04), {"beta": 0.04}),
    "the paper's sequence mean": (replace(GRPO, reduction="sequence_mean"), {"loss_type": "grpo"}),
    "dr_grpo": (PRESETS["dr_grpo"], {"loss_type": "dr_grpo", "scale_rewards": "none"}),
    "gdpo of one reward": (PRESETS["gdpo"], {"multi_objective_aggregation": "normalize_then_sum"}),
    "gspo": (PRESETS["gspo"], {"importance_sampling_level": "sequence", "loss_type": "grpo", "epsilon": 3e-4}),
}


async def sampled(policy, temperature):
    """Rollouts of two prompts, of many lengths, as our engine samples them; the pad token is not EOS."""
    assert policy.format.stop_ids != (0,)
    rollouts = []
    for p, prompt in enumerate(PROMPTS):
        for g, (reward, length) in enumerate(zip(REWARDS[p], LENGTHS[p], strict=True)):
            params = SamplingParams(max_tokens=length, seed=10 * p + g, temperature=temperature)
            reply = await policy.chat([{"role": "user", "content": prompt}], params, order_key=f"{p}{g}")
            rollouts.append(
                {
                    "prompt": prompt,
                    "prompt_ids": reply.prompt_ids,
                    "completion_ids": reply.completion_ids,
                    "logprobs": reply.logprobs,
                    "reward": reward,
                }
            )
    return rollouts


def groups_of(rollouts, temperature):
    made = []
    for p, prompt in enumerate(PROMPTS):
        members = [
            trajectory(
                r["prompt_ids"],
                r["completion_ids"],
                r["logprobs"],
                r["reward"],
                rollout=f"{p}-{i}",
                example=p,
                temperature=temperature,
            )
            for i, r in enumerate(r for r in rollouts if r["prompt"] == prompt)
        ]
        made.append(Group(p, tuple(members)))
    return made


def ours(policy, groups, preset, monkeypatch, **loop):
    """Loss and gradient of one optimiser step."""
    learner = learner_of(policy, reference=bool(preset.kl_coefficient))
    found = {}

    def keep():
        found.update({name: master.grad.clone() for name, master in learner.weights.masters.items()})
        learner.weights.clear_gradients()
        return {"grad_norm": 0.0, "learning_rate": 0.0}

    monkeypatch.setattr(learner.optimiser, "step", keep)
    limit = 64 if preset.reduction == "constant_length" else None
    rows = encode_groups(groups, preset, rewards=(RewardTerm(REWARD),), length_limit=limit, max_length=None, policy_version=0)
    objective = GroupObjective(rows, PolicyGradientSettings(preset, limit, None), agreement_bound=1e-3)
    done = optimise(learner, objective, LoopSettings(**loop), seed=0, progress=lambda share: None, cancelled=lambda: False)
    return done.curve[0]["loss"], found


def theirs(folder: Path, policy, rollouts, settings, *, batch_size):
    folder.mkdir()
    for part in (policy.model, policy.format._tokenizer):
        part.save_pretrained(folder / "model")
    settings = {
        "temperature": 1.0,
        "loss_type": "dapo",
        **settings,
        "per_device_train_batch_size": batch_size,
        "gradient_accumulation_steps": len(rollouts) // batch_size,
    }
    (folder / "batch.json").write_text(json.dumps({"rollouts": rollouts, "generations": 4, "settings": settings}))
    script = Path(__file__).with_name("trl_grpo.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [str(PYTHON), str(script), str(folder)], capture_output=True, text=True, timeout=300, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "loss.json").read_text())[0], load_file(folder / "gradients.safetensors")


def largest_difference(one, other):
    assert one.keys() == other.keys()
    return max((one[name] - other[name]).abs().max().item() for name in one)


@pytest.mark.parametrize("name", CASES)
async def test_one_step_equals_trls(name, tmp_path, monkeypatch):
    preset, settings = CASES[name]
    temperature = settings.get("temperature", 1.0)
    with tiny_policy() as policy:
        rollouts = await sampled(policy, temperature)
        loss, gradients = ours(policy, groups_of(rollouts, temperature), preset, monkeypatch)
        peer_loss, peer_gradients = theirs(tmp_path / "one", policy, rollouts, settings, batch_size=8)
    assert max(gradient.abs().max().item() for gradient in gradients.values()) > 1e-2
    assert loss == pytest.approx(peer_loss, abs=TOLERANCE)
    assert largest_difference(gradients, peer_gradients) < TOLERANCE


async def test_eight_times_one_is_one_times_eight_here_and_there(tmp_path, monkeypatch):
    with tiny_policy() as policy:
        rollouts = await sampled(policy, 1.0)
        groups = groups_of(rollouts, 1.0)
        _, whole = ours(policy, groups, GRPO, monkeypatch, max_tokens_per_microbatch=100_000)
        _, one_by_one = ours(policy, groups, GRPO, monkeypatch, max_tokens_per_microbatch=1)
        _, peer = theirs(tmp_path / "eight", policy, rollouts, {}, batch_size=1)
    assert largest_difference(whole, one_by_one) < TOLERANCE
    assert largest_difference(one_by_one, peer) < TOLERANCE
