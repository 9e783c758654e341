"""What a run says when nothing is learned."""

import random
from dataclasses import replace

from nat_finetune.report.diagnosis import (
    Evidence,
    no_signal_message,
    nothing_left_message,
    plateau,
    short,
    unscored_message,
)
from nat_finetune.types import Cause, Dropped, DropReason
from tests.data.rollouts import TARGET, call, rollout
from tests.data.test_signal import failure

FLAT = [Dropped("group", DropReason.FLAT_GROUP)] * 3


def scored(outcome, example, generation=0):
    made = rollout(call(0, [1], [2]), outcome=outcome, example_id=example, rollout_id=f"{example}-{generation}")
    return replace(made, output=f"answer of {example}")


def evidence(rollouts, **changes):
    return Evidence(rollouts, TARGET, 8, **changes)


def test_a_reward_that_is_flat_everywhere_is_shown_with_three_rollouts_and_suspects_in_order():
    said = no_signal_message(3, FLAT, evidence([scored(0.0, name) for name in "abcd"], best={"outcome": 1.0}))
    assert said.splitlines()[0].startswith("no trainable signal: there was nothing to learn from in 3 steps in a row")
    assert "3 x group: flat_group" in said
    assert "outcome is 0 for all 4 scored rollouts" in said
    assert said.count("[outcome 0] example") == 3
    assert said.count("output:   answer of") == 3
    order = [
        said.index(word)
        for word in ("1. the evaluator: gold answers must score its maximum (outcome 1)", "2. the task's", "3. gen")
    ]
    assert order == sorted(order)
    assert "now 8 rollouts of each example at temperature 0.7" in said
    assert "min_reward_diff" not in said


def test_rewards_that_differ_between_examples_only_are_told_apart():
    said = no_signal_message(1, FLAT, evidence([scored(0.0, "a"), scored(0.0, "a", 1), scored(1.0, "b"), scored(1.0, "b", 1)]))
    assert "outcome differs between examples, not inside their groups: 0 (2 x), 1 (2 x)" in said
    assert said.index("[outcome 1] example 'b'") < said.index("[outcome 0] example 'a'")


def test_failures_of_the_policy_are_counted_with_the_most_frequent():
    failed = [replace(scored(0.0, name), failure=failure("model", Cause.POLICY)) for name in "abc"]
    said = no_signal_message(1, FLAT, evidence([*failed, scored(0.0, "d")]))
    assert "3 of 4 rollouts ended in a failure of the policy; 3 x ValueError: no" in said
    assert "failure of the policy" not in no_signal_message(1, FLAT, evidence([scored(0.0, "d")]))


def test_min_reward_diff_is_named_as_a_filter():
    dropped = [Dropped("group", DropReason.LOW_SPREAD)] * 2
    said = no_signal_message(1, dropped, evidence([scored(0.0, "a")], min_reward_diff=0.1))
    assert "min_reward_diff = 0.1 left out 2 groups whose rewards differ by less: it is a filter" in said


def test_too_many_rollouts_without_a_score():
    broken = replace(scored(None, "b"), events=(failure("evaluator", "infrastructure"),))
    rollouts = [scored(1.0, "a"), broken]
    assert unscored_message(evidence(rollouts), ["outcome"], 0.5) is None
    said = unscored_message(evidence(rollouts), ["outcome"], 0.4)
    assert "1 of 2 rollouts have no score (outcome of 1), more than finetuning.max_unscored_rate = 0.4" in said
    assert "evaluators failed 1 times, such as: ValueError: no" in said
    assert "[outcome unknown] example 'b'" in said
    assert "example 'a'" not in said


def test_nothing_left_is_not_taken_for_granted():
    said = nothing_left_message(3, evidence([scored(1.0, "a")], best={"outcome": 1.0}))
    assert said.startswith(
        "nothing left to learn: every rollout scored the evaluator's maximum (outcome 1) in 3 steps in a row"
    )
    assert "or the evaluator pays everything" in said


def test_long_and_empty_texts_fit_a_line():
    assert short("a\n b") == "a b"
    assert short(" ") == "' '"
    assert short("x" * 1000).endswith("… (1,000 characters)")


def steps(means, spread=0.5):
    return [
        {"step": n, "update": {"loss": 0.1}, "reward": {"outcome": {"mean": m, "spread": spread}}} for n, m in enumerate(means)
    ]


def test_a_plateau_is_a_reward_that_stopped_rising_though_groups_have_spread():
    noise = random.Random(0)
    rising = [0.02 * n + noise.gauss(0, 0.02) for n in range(30)]
    risen = [min(0.4, 0.04 * n) + noise.gauss(0, 0.02) for n in range(30)]
    assert plateau(steps(rising), "outcome", 1.0) is None
    said = plateau(steps(risen), "outcome", 1.0)
    assert said.startswith("plateau: outcome has not risen since step 15 (mean 0.")
    assert said.index("evaluator") < said.index("difficulty") < said.index("generations")


def test_what_is_no_plateau():
    flat = [0.5] * 30
    assert plateau(steps(flat), "outcome", None) is not None
    assert plateau(steps(flat), "outcome", 0.5) is None  # at its best
    assert plateau(steps(flat, spread=0.0), "outcome", None) is None  # no signal: another diagnosis
    assert plateau(steps(flat[:18]), "outcome", None) is None  # too short to say
    assert plateau(steps([None] * 30), "outcome", None) is None
