"""Known answers: what they find in a reward."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nat_finetune.data.known_answers import GIVEN, GOLD, KnownAnswer, corrupted, judge


def answers(gold, **bad):
    made = [KnownAnswer(GOLD, n, "g", value) for n, value in enumerate(gold)]
    for kind, values in bad.items():
        made += [KnownAnswer(kind.replace("_", " "), n, "b", value) for n, value in enumerate(values)]
    return made


def test_a_reward_that_knows_its_answers_has_no_problem():
    found = judge(answers([1.0, 1.0], swapped=[0.0, 0.0], empty=[0.0, 0.0]), best=1.0)
    assert (found.examples, found.problems, found.notes) == (2, (), ())
    assert found.means == {GOLD: 1.0, "swapped": 0.0, "empty": 0.0}


@pytest.mark.parametrize(
    ("made", "best", "problem"),
    [
        (answers([1.0, 0.9], empty=[0.0, 0.0]), 1.0, "1 of 2 gold answers score less than the maximum 1"),
        (answers([0.5], empty=[0.5], swapped=[0.5]), None, "none of 2 corrupted answers scores less"),
        (answers([0.5], empty=[0.0], repeated=[0.6]), None, "1 of 2 bad answers score more than the gold answer"),
        ([*answers([0.5], empty=[0.0]), KnownAnswer(GIVEN, 0, "b", 0.5)], None, "score no less than the gold answer"),
    ],
)
def test_what_makes_a_reward_suspect(made, best, problem):
    (found,) = judge(made, best).problems
    assert problem in found


def test_a_reward_of_the_format_may_pay_other_answers_too():
    found = judge(answers([1.0, 1.0], swapped=[1.0, 1.0], empty=[0.0, 0.0]), best=1.0)
    assert found.problems == ()
    assert found.notes == ("the reward does not look at what makes these answers wrong: swapped",)


def test_what_can_not_be_scored_is_said_and_is_no_zero():
    assert judge([], None).notes == ("no example has a gold answer",)
    unscored = [KnownAnswer(GOLD, 0, "g", None, "TypeError: no events")]
    assert judge(unscored, 1.0).notes == ("the evaluator can't score a gold answer by itself (TypeError: no events)",)
    half = [*answers([1.0], empty=[0.0]), KnownAnswer("swapped", 0, "b", None)]
    assert judge(half, 1.0).notes == ("1 of 3 known answers got no score",)


GOLD_ANSWERS = st.one_of(st.text(), st.integers(), st.booleans(), st.lists(st.integers()))


@given(GOLD_ANSWERS, st.one_of(st.none(), st.text(), st.integers()))
def test_a_corrupted_answer_is_never_the_gold_one(gold, other):
    assert all(output != gold for _, output in corrupted(gold, other))
