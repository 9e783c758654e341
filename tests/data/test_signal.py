"""What a step's scores say: which are missing, and whether all are at their best."""

from dataclasses import replace

from nat_finetune.data.signal import all_at_best, evaluator_failures, scored_attempts, unscored
from nat_finetune.types import Cause, Failure
from tests.data.rollouts import rollout


def failure(stage, cause):
    return Failure(
        rollout_id="r", seq=0, path=(), start=0.0, end=0.0, stage=stage, cause=cause, error_type="ValueError", message="no"
    )


def failed(cause, outcome=None):
    return replace(rollout(outcome=outcome), failure=failure("workflow", cause))


def test_evaluators_are_asked_about_final_attempts_that_the_infrastructure_did_not_end():
    asked = [rollout(), failed(Cause.POLICY)]
    not_asked = [rollout(rollout_id="r~1"), failed(Cause.INFRASTRUCTURE)]
    assert scored_attempts([*asked, *not_asked]) == asked


def test_a_score_is_missing_where_one_of_several_rewards_is():
    both = replace(rollout(), rewards={"a": 1.0, "b": 0.0})
    half = replace(rollout(), rewards={"a": 1.0, "b": None})
    assert unscored([both, half], ["a", "b"]) == [half]
    assert unscored([both, half], ["a"]) == []
    assert unscored([failed(Cause.INFRASTRUCTURE)], ["outcome"]) == []


def test_failures_of_evaluators_are_told_from_others():
    one = failure("evaluator", Cause.INFRASTRUCTURE)
    assert evaluator_failures(rollout(one, failure("tool", Cause.INFRASTRUCTURE))) == [one]


def test_all_at_best_needs_every_score_of_every_reward():
    best = {"outcome": 0.3}
    good, bad, unknown = rollout(outcome=0.1 + 0.2), rollout(outcome=0.0), rollout(outcome=None)
    assert all_at_best([good, good], best, ["outcome"])  # 0.1 + 0.2 is a little more than 0.3
    assert not all_at_best([good, bad], best, ["outcome"])
    assert not all_at_best([good, unknown], best, ["outcome"])
    assert not all_at_best([good], best, ["outcome", "other"])
    assert not all_at_best([good], {}, ["outcome"])
    assert not all_at_best([good], best, [])
