"""The two configs of the claims review, in small: the same policy, and only the function that is aimed at is trained."""

import json

import pytest

from tests.e2e.runs import cli, only_run, small_config

METRICS = {
    "dpo_claims_review": {"rubric", "correctness", "citation", "restraint", "form", "plan_score"},
    "grpo_claims_review": {"plan_score", "plan_solved", "rubric"},
}


@pytest.fixture(scope="module", params=METRICS)
def report(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    done = cli("run", *small_config(request.param, folder, train=12))
    assert done.returncode == 0, done.stderr
    return request.param, json.loads((only_run(folder) / "report.json").read_text(encoding="utf-8"))


def test_both_functions_are_reported_before_and_after(report):
    name, found = report
    assert set(found["metrics"]) == METRICS[name]
    for metric in found["metrics"].values():
        assert metric["before"]["mean"] is not None
        assert metric["after"]["mean"] is not None
        assert metric["gain"]["low"] <= metric["gain"]["mean"] <= metric["gain"]["high"]


def test_the_base_knows_the_forms_and_not_what_is_right(report):
    _, found = report
    before = {name: metric["before"]["mean"] for name, metric in found["metrics"].items()}
    assert 0.05 < before["rubric"] < 0.25
    assert 0.1 < before["plan_score"] < 0.5


def test_what_is_trained_is_the_function_that_is_aimed_at(report):
    """Half of the recorded calls are the writer's, outside the target; labels need no calls at all."""
    name, found = report
    calls = {row["reason"] or row["bucket"]: row["calls"] for row in found["ledger"]["rows"]}
    if name.startswith("dpo"):
        assert found["ledger"]["calls"] == 0
        assert found["steps"][0]["kept"] + sum(found["steps"][0]["dropped"].values()) == 12
    else:
        assert calls["outside_target"] == found["ledger"]["calls"] / 2 == 48
        assert calls["trained"] > 0
