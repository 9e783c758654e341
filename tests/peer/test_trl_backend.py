"""TRL as a backend for real: the same job through `local_trainer_adapter` and `trl_trainer_adapter` gives the same weights.

TRL lives in an environment of its own: `make test-peer` makes it, or set NAT_FINETUNE_TRL_PYTHON to its Python.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from dataclasses import replace
from functools import partial

import pytest
import torch
from nat_finetune_plugins.trl.adapter import TRLTrainerAdapter
from nat_finetune_plugins.trl.settings import TRLTrainerAdapterConfig

from nat_finetune.adapters.local_settings import LocalTrainerAdapterConfig
from nat_finetune.cli.main import main
from nat_finetune.local.jobs import LocalTrainerAdapter
from nat_finetune.local.model import load_model
from nat_finetune.local.policy import LocalPolicy
from nat_finetune.testing.items import collection, demonstration, pair, trajectory
from nat_finetune.testing.parts import TARGET
from nat_finetune.types import Group, JobState, RewardTerm, Target
from tests.fixtures.training import tiny_policy
from tests.source_tree import ROOT

PYTHON = os.environ.get("NAT_FINETUNE_TRL_PYTHON")

pytestmark = [
    pytest.mark.peer,
    pytest.mark.skipif(PYTHON is None, reason="NAT_FINETUNE_TRL_PYTHON does not name a Python that has TRL"),
]

TOLERANCE = 2e-5
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "wins"]
PAIRS = [pair(" ".join(WORDS[: 1 + n % 4]), WORDS[-1 - n % 3], text=f"move {n}", example=n) for n in range(10)]
SAID = [demonstration(" ".join(WORDS[: 1 + n % 5]), text=f"move {n}") for n in range(10)]
COMMON = {"learning_rate": 1e-3, "epochs": 2, "batch_size": 4, "schedule": "linear", "warmup_steps": 2}
CASES = {
    "dpo": (PAIRS, {"algorithm": {"name": "dpo", "beta": 0.1}}),
    "dpo, lora": (PAIRS, {"algorithm": {"name": "dpo", "beta": 0.1}, "lora": {"rank": 4, "alpha": 8}}),
    "dpo, robust": (PAIRS, {"algorithm": {"name": "dpo", "loss": "robust", "label_smoothing": 0.1}, "weight_decay": 0.1}),
    "dpo, sigmoid_norm": (PAIRS, {"algorithm": {"name": "dpo", "loss": "sigmoid_norm", "beta": 1.0}, "max_grad_norm": 0.1}),
    "sft": (SAID, {"algorithm": {"name": "sft"}}),
}


def theirs_of(policy, settings, folder, *, total):
    config = TRLTrainerAdapterConfig(python=PYTHON, poll_seconds=0.2, **settings)
    return TRLTrainerAdapter(config, policy, target=TARGET, name="trl", seed=3, folder=folder)


def ours_of(policy, settings, folder, *, total, target=TARGET):
    falls = {"total_steps": total} if settings.get("schedule") == "linear" else {}
    config = LocalTrainerAdapterConfig(**settings, **falls)
    return LocalTrainerAdapter(config.settings(), policy, target=target, name="here", seed=3)


async def trained(make, policy, settings, items, folder):
    """Weights after one update, and what was measured."""
    adapter = make(policy, settings, folder, total=6)
    await adapter.health()
    ref = await adapter.submit(await adapter.prepare(collection(*items), None))
    status = await adapter.wait(ref)
    assert status.state is JobState.COMPLETED, await adapter.logs(ref)
    result = await adapter.result(ref)
    return {name: value.clone() for name, value in policy.model.state_dict().items()}, result


def largest(one, other):
    assert one.keys() == other.keys()
    return max((one[name] - other[name]).abs().max().item() for name in one)


@pytest.mark.parametrize("name", CASES)
async def test_both_adapters_give_the_same_weights(name, tmp_path):
    items, changes = CASES[name]
    settings = {**COMMON, **changes}
    with tiny_policy() as policy:
        before = {name: value.clone() for name, value in policy.model.state_dict().items()}
        ours, our_result = await trained(ours_of, policy, settings, items, tmp_path)
    with tiny_policy() as policy:
        theirs, their_result = await trained(theirs_of, policy, settings, items, tmp_path)
    apart = largest(ours, theirs)
    begun = before if "lora" not in changes else {name: torch.zeros(()) for name in ours if "lora_B" in name}
    moved = max((ours[name] - value).abs().max().item() for name, value in begun.items())
    losses = [(one["loss"], other["loss"]) for one, other in zip(our_result.curve, their_result.curve, strict=True)]
    worst = max(abs(one - other) for one, other in losses)
    print(f"\n{name}: weights moved {moved:.3g}, apart {apart:.2g}; losses apart {worst:.2g} in {len(losses)} steps")
    assert their_result.optimiser_steps == our_result.optimiser_steps == 6
    assert apart < TOLERANCE
    assert moved > 50 * TOLERANCE
    assert worst < 1e-4  # transformers logs losses with few digits


TWO = (RewardTerm("move_quality", 2.0), RewardTerm("legal_rate"))
RUNS = {
    "grpo": ([], Target(("choose_move",), "policy", (RewardTerm("move_quality"),))),
    "gdpo": (
        [
            "finetuning.reward_function=null",
            "finetuning.reward_functions=[{name: move_quality, weight: 2.0}, {name: legal_rate}]",
            "trainer_adapters.trl.algorithm.name=gdpo",
        ],
        Target(("choose_move",), "policy", TWO, rewards_apart=True),
    ),
}


@pytest.mark.parametrize("name", RUNS)
async def test_one_update_on_the_tokens_that_trl_sampled(name, tmp_path):
    """A whole run of one update; then the same tokens and rewards through `local_trainer_adapter`."""
    further, target = RUNS[name]
    data = tmp_path / "few.jsonl"
    lines = (ROOT / "workflows/tic_tac_toe/data/move_train.jsonl").read_text().splitlines()
    data.write_text("\n".join(lines[:16]) + "\n")
    changes = [
        *further,
        f"eval.general.dataset.file_path={data}",
        "finetuning.examples_per_step=16",
        "trainer_adapters.trl.warmup_steps=0",
    ]
    config = ROOT / "configs" / "grpo_tic_tac_toe_trl.yml"
    began = time.monotonic()
    arguments = ["run", str(config), "--output-dir", str(tmp_path), *(part for change in changes for part in ("-o", change))]
    assert await asyncio.to_thread(main, arguments) == 0
    seconds = time.monotonic() - began
    (run,) = tmp_path.glob("grpo_*")
    (job,) = (path.parent for path in (run / "trl").glob("*/result.json"))
    rows = [json.loads(line) for line in (job / "rollouts.jsonl").read_text().splitlines()]
    assert len(rows) == 128
    assert len({row["seed"] for row in rows}) == 128
    source = load_model("builtin:tic-tac-toe", dtype="float32", device="cpu")
    policy = LocalPolicy("policy", source)
    try:
        settings = {"algorithm": {"name": name}, "learning_rate": 5e-4}
        make = partial(ours_of, target=target)
        ours, result = await trained(make, policy, settings, groups_of(rows), tmp_path)
    finally:
        policy.close()
    theirs = load_model(str(job / "output"), dtype="float32", device="cpu").model.state_dict()
    apart = largest(ours, theirs)
    told = json.loads((job / "result.json").read_text())
    print(f"\n{name}: {seconds:.0f} s for the run; after one update on 128 rollouts weights are {apart:.2g} apart")
    assert told["rollouts"]["rollouts"] == 128
    assert result.metrics["grad_norm"] == pytest.approx(told["history"][0]["grad_norm"], rel=1e-3)
    # Adam's first step is lr times the sign of the gradient: where that is rounding, the sign is too.
    far = sum(((ours[name] - theirs[name]).abs() > 1e-6).sum().item() for name in ours)
    assert far < 1e-3 * sum(value.numel() for value in ours.values())
    assert torch.isfinite(torch.tensor(apart))


def groups_of(rows):
    """The rollouts of each example as a group, with the tokens that TRL trained."""
    groups = []
    for first in range(0, len(rows), 8):
        members = [_rollout(row, first + place) for place, row in enumerate(rows[first : first + 8])]
        groups.append(Group(rows[first]["example_id"], tuple(members)))
    return groups


def _rollout(row, number):
    """A rollout with its rewards by name."""
    tokens = (tuple(row["trained"][name]) for name in ("prompt_ids", "completion_ids", "logprobs"))
    made = trajectory(*tokens, None, rollout=f"{number}", example=row["example_id"])
    return replace(made, rewards=row["reward_components"])
