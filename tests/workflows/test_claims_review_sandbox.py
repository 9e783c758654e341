"""Plans against what the rules make of them."""

from __future__ import annotations

import pytest
from nat_finetune_workflows.claims_review import make_data, sandbox
from nat_finetune_workflows.claims_review.claims import parse_claim
from nat_finetune_workflows.claims_review.prompts import parse_plan, plan_text

from nat_finetune.tracing.context import recording
from nat_finetune.tracing.recorder import Recorder

ESTIMATED = parse_claim("plus leak kitchen moderate 6 days invoice none")
INVOICED = parse_claim("plus leak kitchen moderate 6 days invoice 900")
EXCLUDED = parse_claim("basic leak kitchen severe 1 days invoice none")
LATE = parse_claim("basic fire kitchen severe 19 days invoice 3000")


def score(claim, text: str) -> float:
    plan = parse_plan(text)
    assert plan is not None
    return sandbox.score(claim, plan)


@pytest.mark.parametrize(
    ("claim", "plan", "expected"),
    [
        (ESTIMATED, "policy_lookup damage_estimate coverage_arithmetic", 1.0),
        (ESTIMATED, "damage_estimate policy_lookup coverage_arithmetic", 1.0),
        (ESTIMATED, "policy_lookup coverage_arithmetic damage_estimate", 0.0),  # the arithmetic lacks the loss
        (ESTIMATED, "coverage_arithmetic", 0.0),
        (ESTIMATED, "policy_lookup", 0.0),
        (INVOICED, "policy_lookup coverage_arithmetic", 1.0),
        (INVOICED, "coverage_arithmetic policy_lookup", 0.0),
        (INVOICED, "policy_lookup damage_estimate coverage_arithmetic", 0.7),
        (EXCLUDED, "policy_lookup", 1.0),
        (EXCLUDED, "damage_estimate policy_lookup", 0.7),
        (EXCLUDED, "policy_lookup damage_estimate coverage_arithmetic", 0.4),
        (EXCLUDED, "damage_estimate coverage_arithmetic", 0.0),
        (LATE, "coverage_arithmetic policy_lookup", 0.7),  # a failed call costs as well
    ],
)
def test_score(claim, plan, expected):
    assert score(claim, plan) == pytest.approx(expected)


def test_there_are_fifteen_plans_and_each_reads_back():
    assert len(sandbox.PLANS) == len(set(sandbox.PLANS)) == 3 + 6 + 6
    assert [parse_plan(plan_text(plan)) for plan in sandbox.PLANS] == list(sandbox.PLANS)


@pytest.mark.parametrize("text", ["", "pay", "policy_lookup policy_lookup", "policy_lookup then damage_estimate"])
def test_what_is_no_plan(text):
    assert parse_plan(text) is None


def test_only_the_best_plan_and_its_reorderings_score_one_on_shipped_claims():
    generator = make_data.Random(3)
    for claim in (make_data.draw_claim(generator) for _ in range(200)):
        full = [plan for plan in sandbox.PLANS if sandbox.score(claim, plan) == 1.0]
        assert sandbox.best_plan(claim) in full
        assert {frozenset(plan) for plan in full} == {sandbox.needed(claim)}


def test_tools_are_recorded_with_what_they_found_or_why_not():
    recorder = Recorder("r", 0)
    with recording(recorder):
        found = sandbox.run_plan(INVOICED, parse_plan("coverage_arithmetic policy_lookup"), sandbox.use_traced)
    first, second = recorder.events
    assert (first.name, first.result) == ("coverage_arithmetic", None)
    assert "needs the terms" in first.error
    assert (second.name, second.error, second.result["terms"]["clause"]) == ("policy_lookup", None, "L2")
    assert found.payable is None


def test_no_tool_pays():
    assert {tool.value for tool in sandbox.Tool} == {"policy_lookup", "damage_estimate", "coverage_arithmetic"}
