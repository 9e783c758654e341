"""Token in, token out: what was sampled is what is trained, once, whatever shape the conversation took."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nat_finetune.data.trajectories import Credit, build_trajectory
from nat_finetune.types import Dropped, DropReason, Trajectory
from tests.data.rollouts import TARGET, call, paid, rollout


def trajectory(*events, credit=None, outcome=1.0):
    made = list(build_trajectory(rollout(*events, outcome=outcome), TARGET, credit or Credit()))
    return next(item for item in made if isinstance(item, Trajectory)), [i for i in made if isinstance(i, Dropped)]


def test_a_prompt_that_extends_the_sequence_joins_it_and_what_it_added_is_context():
    made, dropped = trajectory(call(0, [1, 2], [3, 4]), call(1, [1, 2, 3, 4, 9, 9], [5]))
    (segment,) = made.segments
    assert segment.token_ids == (1, 2, 3, 4, 9, 9, 5)
    assert segment.loss_mask == (0, 0, 1, 1, 0, 0, 1)
    assert segment.logprobs == (0.0, 0.0, -0.1, -0.2, 0.0, 0.0, -0.1)
    assert [(turn.index, turn.start, turn.end, turn.call_seq) for turn in segment.turns] == [(0, 2, 4, 0), (1, 6, 7, 1)]
    assert segment.turns[0].temperature == 0.7
    assert made.rewards == {"outcome": 1.0}
    assert dropped == []


def test_a_re_rendered_history_starts_a_new_segment():
    made, _ = trajectory(call(0, [1, 2], [3, 4]), call(1, [1, 2, 3, 7, 9], [5]))
    assert [segment.token_ids for segment in made.segments] == [(1, 2, 3, 4), (1, 2, 3, 7, 9, 5)]
    assert [segment.turns[0].index for segment in made.segments] == [0, 1]


def test_identical_prompts_are_turns_of_their_own():
    made, _ = trajectory(call(0, [1], [2]), call(1, [1], [2]), call(2, [1], [3]))
    assert [segment.token_ids for segment in made.segments] == [(1, 2), (1, 2), (1, 3)]


def test_only_the_target_models_calls_inside_target_functions_are_trained():
    made, dropped = trajectory(
        call(0, [1], [2]), call(1, [1, 2, 5], [3], path=("<workflow>",)), call(2, [1, 2, 6], [4], llm="judge")
    )
    assert [segment.token_ids for segment in made.segments] == [(1, 2)]
    assert [(drop.reason, drop.call_seq) for drop in dropped] == [
        (DropReason.OUTSIDE_TARGET, 1),
        (DropReason.OUTSIDE_TARGET, 2),
    ]


def test_a_function_that_a_target_function_called_is_inside():
    built, dropped = trajectory(call(0, [1], [2], path=("<workflow>", "player", "helper")))
    assert (len(built.segments), dropped) == (1, [])


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([], DropReason.NO_TRAINED_CALL),
        ([call(0, [1], [2]), call(1, [1], [2], ids=False)], DropReason.NO_TOKEN_IDS),
        ([call(0, [1], [2]), call(1, [1], [2], logprobs=False)], DropReason.NO_LOGPROBS),
    ],
)
def test_a_trajectory_with_a_hole_is_dropped_whole(events, reason):
    (drop,) = build_trajectory(rollout(*events), TARGET, Credit())
    assert (drop.what, drop.reason, drop.rollout_id) == ("trajectory", reason, "r")


ids = st.lists(st.integers(0, 3), min_size=1, max_size=4)
shapes = st.lists(
    st.tuples(st.integers(-1, 5), ids, ids, st.sampled_from(["policy", "judge"]), st.sampled_from(["player", "opponent"])),
    min_size=1,
    max_size=7,
)


def conversation(shape):
    """Calls that go on from an earlier one of whatever model and function, or begin anew."""
    calls = []
    for seq, (earlier, added, sampled, llm, function) in enumerate(shape):
        before = calls[earlier] if 0 <= earlier < len(calls) else None
        history = [*before.prompt_ids, *before.completion_ids] if before else []
        calls.append(call(seq, history + added, sampled, llm=llm, path=("<workflow>", function)))
    return calls


@given(shapes)
def test_every_sampled_token_of_the_target_is_trained_exactly_once(shape):
    """Whatever goes on, branches, repeats or interleaves: a trained turn is a call's prompt, then its completion."""
    calls = conversation(shape)
    kept = {c.seq: c for c in calls if c.llm == "policy" and "player" in c.path}
    made = list(build_trajectory(rollout(*calls), TARGET, Credit()))
    dropped = [item for item in made if isinstance(item, Dropped)]
    if not kept:
        assert dropped[-1].reason is DropReason.NO_TRAINED_CALL
        return
    (built,) = [item for item in made if isinstance(item, Trajectory)]
    assert [drop.call_seq for drop in dropped] == [c.seq for c in calls if c.seq not in kept]
    trained = {}
    for segment in built.segments:
        for turn in segment.turns:
            assert turn.call_seq not in trained
            trained[turn.call_seq] = segment.token_ids[: turn.start], segment.token_ids[turn.start : turn.end]
            assert segment.logprobs[turn.start : turn.end] == calls[turn.call_seq].logprobs
        marked = [i for i, mask in enumerate(segment.loss_mask) if mask]
        assert marked == [i for turn in segment.turns for i in range(turn.start, turn.end)]
        assert all(segment.logprobs[i] == 0.0 for i, mask in enumerate(segment.loss_mask) if not mask)
    assert trained == {c.seq: (c.prompt_ids, c.completion_ids) for c in kept.values()}
    assert built.trainable_tokens == sum(len(c.completion_ids) for c in kept.values())
    order = sorted((turn for segment in built.segments for turn in segment.turns), key=lambda turn: turn.index)
    assert [turn.call_seq for turn in order] == sorted(kept)


@given(shapes)
def test_a_segment_begins_only_where_no_open_one_fits(shape):
    calls = [replace(c, llm="policy", path=("player",)) for c in conversation(shape)]
    built, _ = trajectory(*calls)
    begins = {segment.turns[0].call_seq for segment in built.segments}
    sequences = []
    for c in calls:
        fitting = [s for s in sequences if c.prompt_ids[: len(s)] == s]
        assert (c.seq in begins) == (not fitting)
        if fitting:
            sequences.remove(max(fitting, key=len))
        sequences.append(c.prompt_ids + c.completion_ids)


def test_the_longest_of_several_fitting_segments_is_extended():
    built, _ = trajectory(call(0, [1], [2]), call(1, [1], [2, 3]), call(2, [1, 2, 3, 4], [5]))
    assert [segment.token_ids for segment in built.segments] == [(1, 2), (1, 2, 3, 4, 5)]


def test_sub_agents_that_interleave_each_keep_their_own_segment():
    one, other = call(0, [1], [2]), call(1, [7], [8])
    built, _ = trajectory(one, other, call(2, [1, 2, 3], [4]), call(3, [7, 8, 9], [6]))
    assert [segment.token_ids for segment in built.segments] == [(1, 2, 3, 4), (7, 8, 9, 6)]
    assert [[turn.index for turn in segment.turns] for segment in built.segments] == [[0, 2], [1, 3]]


# ------------------------------------------------------------------------------------------------------------------ credit


def credits(*events, outcome=1.0, **fields):
    built, _ = trajectory(*events, credit=Credit(per_turn=True, **fields), outcome=outcome)
    return [turn.credit for segment in built.segments for turn in segment.turns]


TURNS = [call(0, [1], [2]), call(1, [1], [2]), call(2, [1], [2])]


def test_credit_is_the_discounted_return():
    events = [call(0, [1], [2]), paid(1, 0, 1.0), paid(2, 0, 0.5), call(3, [1], [2]), paid(4, 3, 2.0)]
    assert credits(*events, discount=0.5) == [2.5, 2.0]
    assert credits(*events, discount=0.5, outcome_weight=4.0) == [1.5 + 0.5 * 6.0, 6.0]
    assert credits(*events, discount=0.0, outcome_weight=4.0) == [1.5, 6.0]
    built, _ = trajectory(*events)
    assert [segment.turns[0].credit for segment in built.segments] == [None, None]


def test_what_the_rollout_earned_as_a_whole_is_part_of_its_last_turn():
    events = [*TURNS, paid(3, 0, 1.0), paid(4, 1, 1.0), paid(5, 2, 1.0), paid(6, None, 10.0)]
    assert credits(*events) == [13.0, 12.0, 11.0]
    assert credits(*events, discount=0.0) == [1.0, 1.0, 11.0]
    assert credits(*events[:-1], paid(6, None, None), discount=0.0) == [1.0, 1.0, None]


@pytest.mark.parametrize("unknown", [[], [paid(9, 1, None)], [paid(9, 1, float("nan"))], [paid(8, 1, 1.0), paid(9, 1, None)]])
def test_an_unknown_step_reward_makes_unknown_what_rests_on_it(unknown):
    events = [*TURNS, paid(3, 0, 1.0), paid(4, 2, 1.0), *unknown]
    assert credits(*events) == [None, None, 1.0]
    assert credits(*events, discount=0.0) == [1.0, None, 1.0]


def test_an_unknown_outcome_counts_only_where_it_has_weight():
    events = [TURNS[0], paid(3, 0, 1.0)]
    assert credits(*events, outcome=None) == [1.0]
    assert credits(*events, outcome=None, outcome_weight=0.5) == [None]


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=6), st.floats(0, 1), st.floats(0, 2), st.floats(-1, 1))
def test_every_trained_turn_carries_the_return_of_the_definition(steps, discount, weight, outcome):
    calls = [call(seq, [seq], [1, 2]) for seq in range(len(steps))]
    events = [*calls, *(paid(100 + seq, seq, value) for seq, value in enumerate(steps))]
    rewards = [*steps[:-1], steps[-1] + weight * outcome]
    wanted = [sum(discount**k * r for k, r in enumerate(rewards[t:])) for t in range(len(rewards))]
    found = credits(*events, outcome=outcome, discount=discount, outcome_weight=weight)
    assert found == pytest.approx(wanted, abs=1e-9)
