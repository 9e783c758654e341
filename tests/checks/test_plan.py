"""The plan's arithmetic, by hand; its counting, on shipped configs; and a run that keeps to a budget."""

import json

import pytest

from nat_finetune.checks.measure import work_of
from nat_finetune.checks.plan import Prices, Speeds, Work, largest_generations, make_plan
from nat_finetune.cli.durations import duration, seconds_of
from nat_finetune.cli.main import main
from nat_finetune.config.load import load_config
from nat_finetune.errors import ConfigError
from nat_finetune.registry import Registry
from nat_finetune.steps.schedule import Budget
from tests.e2e.runs import ROOT, only_run, small_config

REGISTRY = Registry.installed()
SIX_HOURS = 6 * 3600


@pytest.mark.parametrize(("generations", "seconds"), [(4, 8_000), (8, 16_000)])
def test_a_thousand_prompts_at_eight_seconds_on_four_slots(generations, seconds):
    plan = make_plan(Work(1_000, generations, 1, 125), Speeds(8.0, slots=4), SIX_HOURS)
    assert plan.collection_seconds == seconds
    assert plan.left_seconds == SIX_HOURS - seconds
    assert plan.total_seconds is None  # nobody said how long an update takes


def test_what_fits_into_six_hours():
    work, speeds = Work(1_000, 4, 1, 100, held_out={"test": 100}), Speeds(8.0, slots=4, update_seconds=30.0)
    plan = make_plan(work, speeds, SIX_HOURS)
    assert plan.evaluation_seconds == 2 * 100 * 8 / 4
    assert plan.total_seconds == 8_000 + 3_000 + 400
    assert plan.updates_in_window == 100
    # a generation: 2,000 s of collection and 750 s of updates; (21,600 - 400) / 2,750 = 7.7
    assert largest_generations(work, speeds, SIX_HOURS) == 7


def test_a_window_that_is_too_short():
    work, speeds = Work(1_000, 4, 1, 100), Speeds(8.0, slots=4, update_seconds=30.0)
    plan = make_plan(work, speeds, 3_600)
    assert plan.left_seconds == -4_400
    assert plan.updates_in_window == 32  # 110 s each
    assert largest_generations(work, speeds, 1_000) == 0


def test_tokens_and_money():
    speeds = Speeds(1.0, prompt_tokens=1_000.0, completion_tokens=100.0)
    plan = make_plan(Work(50, 2, 3, 10, held_out={"test": 100}), speeds)
    assert (plan.tokens("prompt"), plan.tokens("completion")) == (500_000, 50_000)
    assert plan.cost(Prices(prompt=2.0, completion=10.0)) == 1.5
    assert make_plan(plan.work, Speeds(1.0)).cost(Prices(1.0, 1.0)) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("30m", 1800), ("6h", SIX_HOURS), ("1h30m", 5400), ("1.5h", 5400), ("1d", 86400)],
)
def test_durations(text, seconds):
    assert seconds_of(text, "--window") == seconds
    assert seconds_of(duration(seconds), "--window") == seconds


@pytest.mark.parametrize("text", ["", "h", "6 hours", "-1h", "0", "1m1h", "9" * 400])
def test_what_is_no_duration(text):
    with pytest.raises(ConfigError, match="--window takes a duration"):
        seconds_of(text, "--window")


async def test_records_have_no_rollouts_to_plan():
    labels = load_config(ROOT / "configs" / "dpo_claims_review.yml", registry=REGISTRY)
    with pytest.raises(ConfigError, match=r"trajectory_builders\.\w+: trains on the records of its own dataset.*run --budget"):
        await work_of(labels, REGISTRY)


async def test_work_is_counted_off_the_config():
    def load(name, *overrides):
        return load_config(ROOT / "configs" / f"{name}.yml", list(overrides), registry=REGISTRY)

    grpo = await work_of(load("grpo_tic_tac_toe", "finetuning.num_epochs=3", "finetuning.examples_per_step=100"), REGISTRY)
    assert (grpo.examples, grpo.rollouts, grpo.updates) == (350, 350 * 16 * 3, 3 * 4)
    assert (grpo.evaluation_rollouts, set(grpo.exact)) == (0, {"validation", "test"})  # exact scores need no rollouts
    assert grpo.validations == 2  # interval 4: before, and after the last epoch
    dpo = await work_of(load("dpo_tic_tac_toe", "trainers.once.num_runs=2"), REGISTRY)
    assert (dpo.passes, dpo.updates) == (2, 1)


def test_given_speeds_need_no_model(capsys):
    config = str(ROOT / "configs" / "grpo_tic_tac_toe.yml")
    assert main(["plan", config, "--rollout-seconds", "8", "--slots", "4", "--window", "6h", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["collection_seconds"] == 350 * 16 * 16 * 8 / 4
    assert plan["left_seconds"] < 0


def test_epochs_without_end_are_counted_and_not_walked_through(capsys):
    config = str(ROOT / "configs" / "grpo_tic_tac_toe.yml")
    endless = ["-o", f"finetuning.num_epochs={10**18}", "-o", "finetuning.validation=null"]
    assert main(["plan", config, "--rollout-seconds", "8", "--json", *endless]) == 0


@pytest.mark.parametrize(
    "given",
    [["--rollout-seconds", "1e308"], ["--rollout-seconds", "nan"], ["--rollout-seconds", "1", "--measure", "3"]],
)
def test_speeds_that_say_nothing_are_refused(capsys, given):
    assert main(["plan", str(ROOT / "configs" / "grpo_tic_tac_toe.yml"), *given]) == 2
    assert given[-2] in capsys.readouterr().err


def test_measured_speeds(tmp_path, capsys):
    config, *_, = small_config("grpo_tic_tac_toe", tmp_path)  # fmt: skip
    shrink = ["-o", "trajectory_builders.groups.num_generations=4", "--measure", "2", "--json"]
    assert main(["plan", config, *shrink]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["speeds"]["slots"] == 8
    assert plan["speeds"]["rollout_seconds"] > 0
    assert plan["speeds"]["calls"] >= 1
    assert plan["total_seconds"] > plan["collection_seconds"] > 0


# ------------------------------------------------------------------------------------------------------------------ budget


def test_a_budget_leaves_room_for_one_more_step_and_for_what_comes_after():
    now = 0.0
    budget = Budget(100.0, clock=lambda: now)
    now = 10.0
    assert budget.step_done(0.0) is None
    now = 50.0
    assert budget.step_done(8.3) is None  # 50 + 40 (the longest) + 1.2 x 8.3
    assert "100 s" in budget.step_done(8.4)


def test_a_run_ends_inside_its_budget_with_a_report(tmp_path):
    assert main(["run", *small_config("grpo_tic_tac_toe", tmp_path), "--budget", "0.001"]) == 0
    report = json.loads((only_run(tmp_path) / "report.json").read_text())
    assert len(report["steps"]) == 1
    assert any("the budget of" in text for text in report["warnings"])
    assert report["metrics"]["outcome"]["after"]["mean"] is not None
