"""Token in, token out: what was sampled is what is trained, once, whatever shape the conversation took."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nat_finetune.data.groups import build_groups
from nat_finetune.data.trajectories import Credit, build_trajectory
from nat_finetune.types import (
    Cause,
    Dropped,
    DropReason,
    Failure,
    FinishReason,
    Group,
    ModelCall,
    RewardGiven,
    Rollout,
    SamplingParams,
    Target,
    Trajectory,
)

TARGET = Target(("player",), "policy", ("outcome",))


def call(seq, prompt, sampled, *, path=("<workflow>", "player"), llm="policy", ids=True, logprobs=True):
    return ModelCall(
        rollout_id="r",
        seq=seq,
        path=path,
        start=0.0,
        end=0.0,
        llm=llm,
        messages=({"role": "user", "content": "x"},),
        message={"role": "assistant", "content": "y"},
        finish_reason=FinishReason.STOP,
        sampling=SamplingParams(max_tokens=8, temperature=0.7),
        prompt_ids=tuple(prompt) if ids else None,
        completion_ids=tuple(sampled) if ids else None,
        logprobs=tuple(-0.1 * (i + 1) for i in range(len(sampled))) if logprobs else None,
    )


def paid(seq, call_seq, value):
    return RewardGiven(rollout_id="r", seq=seq, path=(), start=0.0, end=0.0, name="step", value=value, call_seq=call_seq)


def rollout(*events, outcome=1.0, rollout_id="r", example_id="e"):
    return Rollout(rollout_id, example_id, 0, 0, events, rewards={"outcome": outcome, "other": None})


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


@given(st.lists(st.tuples(st.booleans(), ids, ids), min_size=1, max_size=6))
def test_every_sampled_token_is_trained_exactly_once(shapes):
    """Conversations that go on, branch and repeat: the trained tokens are the calls' completions, call by call."""
    calls, history = [], []
    for seq, (goes_on, added, sampled) in enumerate(shapes):
        prompt = history + added if goes_on else added
        calls.append(call(seq, prompt, sampled))
        history = prompt + sampled
    made, _ = trajectory(*calls)
    trained = {}
    for segment in made.segments:
        for turn in segment.turns:
            assert turn.call_seq not in trained
            trained[turn.call_seq] = segment.token_ids[: turn.start], segment.token_ids[turn.start : turn.end]
            assert segment.logprobs[turn.start : turn.end] == calls[turn.call_seq].logprobs
        marked = [i for i, mask in enumerate(segment.loss_mask) if mask]
        assert marked == [i for turn in segment.turns for i in range(turn.start, turn.end)]
    assert trained == {c.seq: (c.prompt_ids, c.completion_ids) for c in calls}


def test_per_turn_credit_is_the_discounted_return():
    events = [call(0, [1], [2]), paid(1, 0, 1.0), paid(2, 0, 0.5), call(3, [1], [2]), paid(4, 3, 2.0)]
    made, _ = trajectory(*events, credit=Credit(per_turn=True, discount=0.5))
    assert [segment.turns[0].credit for segment in made.segments] == [2.5, 2.0]
    made, _ = trajectory(*events, credit=Credit(per_turn=True, discount=0.5, outcome_weight=4.0, outcome="outcome"))
    assert [segment.turns[0].credit for segment in made.segments] == [1.5 + 0.5 * 6.0, 6.0]


@pytest.mark.parametrize("events", [[call(0, [1], [2])], [call(0, [1], [2]), paid(1, 0, None)]])
def test_an_unknown_step_reward_falls_back_to_the_outcome(events):
    made, _ = trajectory(*events, credit=Credit(per_turn=True))
    assert made.segments[0].turns[0].credit is None


def test_groups_are_by_example_with_its_type():
    rollouts = [
        rollout(call(0, [1], [2]), outcome=o, rollout_id=f"{e!r}{o}", example_id=e) for e in (1, "1") for o in (0.0, 1.0)
    ]
    groups = [item for item in build_groups(rollouts, TARGET, Credit()) if isinstance(item, Group)]
    assert [(group.example_id, len(group.trajectories)) for group in groups] == [(1, 2), ("1", 2)]


def test_what_can_not_be_compared_is_dropped_with_its_reason():
    broken = Failure(
        rollout_id="f",
        seq=0,
        path=(),
        start=0.0,
        end=0.0,
        stage="model",
        cause=Cause.INFRASTRUCTURE,
        error_type="E",
        message="m",
    )
    flat = [rollout(call(0, [1], [2]), outcome=0.7, rollout_id=f"flat{i}", example_id="flat") for i in range(3)]
    rollouts = [
        *flat,
        rollout(call(0, [1], [2]), rollout_id="single", example_id="single"),
        rollout(call(0, [1], [2]), outcome=None, rollout_id="unknown", example_id="single"),
        replace(rollout(rollout_id="f", example_id="single"), failure=broken),
    ]
    made = list(build_groups(rollouts, TARGET, Credit()))
    assert [(drop.what, drop.reason) for drop in made] == [
        ("rollout", DropReason.UNKNOWN_REWARD),
        ("rollout", DropReason.INFRASTRUCTURE_FAILURE),
        ("group", DropReason.FLAT_GROUP),
        ("group", DropReason.TOO_FEW_ROLLOUTS),
    ]


def test_equal_outcomes_with_unequal_credit_are_no_flat_group():
    rollouts = [rollout(call(0, [1], [2]), paid(1, 0, value), rollout_id=f"r{value}") for value in (0.0, 1.0)]
    (group,) = build_groups(rollouts, TARGET, Credit(per_turn=True))
    assert isinstance(group, Group)
    (drop,) = build_groups(rollouts, TARGET, Credit())
    assert drop.reason is DropReason.FLAT_GROUP
