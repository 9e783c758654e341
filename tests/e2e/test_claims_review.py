"""The two configs of the claims review, in small: the same policy, and only the function that is aimed at is trained."""

import json

from tests.e2e.runs import cli, only_run, small_config


def report(name, folder):
    done = cli("run", *small_config(name, folder, train=12))
    assert done.returncode == 0, done.stderr
    found = json.loads((only_run(folder) / "report.json").read_text(encoding="utf-8"))
    for metric in found["metrics"].values():
        assert metric["gain"]["low"] <= metric["gain"]["mean"] <= metric["gain"]["high"]
    before = {metric: row["before"]["mean"] for metric, row in found["metrics"].items()}
    assert 0.05 < before["rubric"] < 0.25, "the base knows the form and not what is right"
    assert 0.1 < before["plan_score"] < 0.5
    return found


def test_the_planner_learns_from_scores_and_the_writers_calls_are_left_out(tmp_path):
    found = report("grpo_claims_review", tmp_path)
    assert set(found["metrics"]) == {"plan_score", "plan_solved", "rubric"}
    calls = {row["reason"] or row["bucket"]: row["calls"] for row in found["ledger"]["rows"]}
    assert calls["outside_target"] == found["ledger"]["calls"] / 2 == 48
    assert calls["trained"] > 0


def test_the_writer_learns_from_labels_without_a_call(tmp_path):
    found = report("dpo_claims_review", tmp_path)
    by_rule = {"rubric", "correctness", "citation", "restraint", "form", "plan_score"}
    assert set(found["metrics"]) == {*by_rule, "preference_accuracy", "preference_reward_accuracy"}
    assert found["ledger"]["calls"] == 0
    assert found["steps"][0]["kept"] + sum(found["steps"][0]["dropped"].values()) == 12
