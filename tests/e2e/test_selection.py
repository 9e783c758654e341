"""Curriculum and dynamic sampling in real runs: what they leave out and add is accounted for, and a resumed run is the same."""

import json

import pytest

from nat_finetune.runstore import RunStore
from tests.e2e.runs import cli, only_run, small_config
from tests.e2e.test_resume import weights

OPTIONS = [
    "finetuning.dynamic_sampling={max_extra_examples: 2}",
    "finetuning.curriculum_learning={enabled: true, initial_percentile: 0.5, min_reward_diff: 0.0, random_subsample: 0.5}",
    "trajectory_builders.groups={_type: grpo_traj_builder, num_generations: 3}",
]


def arguments(folder):
    return [*small_config("grpo_tic_tac_toe", folder), *(part for option in OPTIONS for part in ("-o", option))]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    done = cli("run", *arguments(folder))
    assert done.returncode == 0, done.stderr
    return only_run(folder)


def further(run):
    """Rollouts of further examples: their position is behind the step's own two."""
    ids = [rollout.rollout_id for _, rollout in RunStore.open(run).rollouts() if rollout is not None]
    return [name for name in ids if int(name.split("-")[1]) >= 2]


def test_flat_groups_are_refilled_and_everything_is_accounted_for(whole):
    report = json.loads((whole / "report.json").read_text())
    extra = [step["dynamic_sampling"] for step in report["steps"]]
    assert sum(line["extra_examples"] for line in extra) * 3 == len(further(whole)) > 0
    assert any("further examples in place of flat groups" in line for line in report["account"])
    assert sum(row["share"] for row in report["ledger"]["rows"]) == pytest.approx(1.0, abs=1e-12)
    calls = sum(len(r.model_calls) for _, r in RunStore.open(whole).rollouts() if r is not None)
    assert report["ledger"]["calls"] == calls
    reasons = {row["reason"] for row in report["dropped"]}
    assert {"flat_group", "curriculum", "random_subsample"} <= reasons


@pytest.mark.slow
@pytest.mark.parametrize("among", ["own", "further"])
def test_a_run_that_was_killed_while_it_collected_ends_the_same(whole, among, tmp_path):
    ids = [rollout.rollout_id for _, rollout in RunStore.open(whole).rollouts() if rollout is not None]
    last = ids.index(further(whole)[-1]) + 1
    killed = cli(
        "run",
        *arguments(tmp_path),
        kill=("nat_finetune.runstore", "RunStore", "add_rollout", last if among == "further" else 9),
    )
    assert killed.returncode == -9, killed.stderr
    run = only_run(tmp_path)
    resumed = cli("run", "--resume", str(run))
    assert resumed.returncode == 0, resumed.stderr
    assert weights(run) == weights(whole)
    assert RunStore.open(run).state().curriculum == RunStore.open(whole).state().curriculum
    reports = [json.loads((folder / "report.json").read_text()) for folder in (whole, run)]
    assert reports[0]["metrics"] == reports[1]["metrics"]
    ledger = reports[1]["ledger"]
    assert ledger["calls"] == sum(len(r.model_calls) for _, r in RunStore.open(run).rollouts() if r is not None)
