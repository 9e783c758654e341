"""Kill -9 anywhere, then --resume: the same weights bit for bit, and nothing paid twice."""

import hashlib
import json
from collections import Counter

import pytest

from nat_finetune.runstore import RunStore
from tests.e2e.runs import cli, only_run, small_config

STORE = "nat_finetune.runstore"
KILLS = {
    "collect": (STORE, "RunStore", "add_rollout", 11),
    "update": ("torch.optim", "AdamW", "step", 2),
    "before-the-checkpoint": (STORE, "RunStore", "save_update", 2),
    "checkpoint": (STORE, "RunStore", "commit", 4),
    "validate": (STORE, "RunStore", "save_evaluation", 3),
}


def weights(run):
    """Hash of every file of the last checkpoint that holds tensors."""
    state = RunStore.open(run).state()
    files = sorted(path for path in (run / "checkpoints" / state.checkpoint).rglob("*.safetensors"))
    assert files
    return [(path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files]


@pytest.fixture(scope="module", params=["grpo_tic_tac_toe", "dpo_tic_tac_toe"])
def uninterrupted(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    done = cli("run", *small_config(request.param, folder))
    assert done.returncode == 0, done.stderr
    return request.param, only_run(folder)


@pytest.mark.parametrize("stage", KILLS)
def test_a_killed_run_goes_on_to_the_same_weights(uninterrupted, stage, tmp_path):
    name, whole = uninterrupted
    module, owner, method, count = KILLS[stage]
    if name.startswith("dpo"):
        count = {"collect": 3, "update": 2, "before-the-checkpoint": 1, "checkpoint": 2, "validate": 2}[stage]
    killed = cli("run", *small_config(name, tmp_path), kill=(module, owner, method, count))
    assert killed.returncode == -9, killed.stdout + killed.stderr
    run = only_run(tmp_path)
    resumed = cli("run", "--resume", str(run))
    assert resumed.returncode == 0, resumed.stderr
    assert weights(run) == weights(whole)
    reports = [json.loads((folder / "report.json").read_text()) for folder in (whole, run)]
    assert reports[0]["metrics"] == reports[1]["metrics"]
    assert [step["reward"] for step in reports[0]["steps"]] == [step["reward"] for step in reports[1]["steps"]]
    assert reports[0]["validations"] == reports[1]["validations"]
    counted = Counter(r.rollout_id for _, r in RunStore.open(run).rollouts() if r is not None)
    again = {rollout for rollout, times in counted.items() if times > 1}
    if stage != "collect":
        assert not again
    ledger = reports[1]["ledger"]
    assert sum(row["share"] for row in ledger["rows"]) == pytest.approx(1.0, abs=1e-12)
    superseded = [row["calls"] for row in ledger["rows"] if row["reason"] == "superseded"]
    assert bool(superseded) == bool(again)


def test_a_finished_run_is_not_run_again(uninterrupted):
    _, run = uninterrupted
    done = cli("run", "--resume", str(run))
    assert done.returncode == 2
    assert "this run has reached its end" in done.stderr
