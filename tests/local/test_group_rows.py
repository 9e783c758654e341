from __future__ import annotations

import itertools
from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nat_finetune.algorithms.presets import PRESETS
from nat_finetune.errors import ConfigError, DataError
from nat_finetune.local.group_rows import encode_groups
from nat_finetune.types import DropReason, FinishReason, Group, RewardTerm, Segment, Trajectory, Turn
from tests.fixtures.training import REWARD, trajectory

PLAIN = replace(PRESETS["grpo"], scale="none")


def encode(*groups, preset=PLAIN, **options):
    settings = {"rewards": (RewardTerm(REWARD),), "length_limit": None, "max_length": None, "policy_version": 0, **options}
    return encode_groups(groups, preset, **settings)


def group_of(rewards, *, example=1, completion=(8, 9)):
    members = [
        trajectory((5, 6), completion, [-1.0] * len(completion), reward, rollout=f"{example}-{i}", example=example)
        for i, reward in enumerate(rewards)
    ]
    return Group(example, tuple(members))


def two_turns(reward, credits, *, rollout="r", between=(7,)):
    """Prompt 5 6, sampled 8 9, an answer of the environment, sampled 4."""
    ids = (5, 6, 8, 9, *between, 4)
    second = 4 + len(between)
    mask = (0, 0, 1, 1, *(0 for _ in between), 1)
    turns = (
        Turn(0, 2, 4, 0, FinishReason.STOP, 1.0, credits[0]),
        Turn(1, second, second + 1, 2, FinishReason.STOP, 0.5, credits[1]),
    )
    segment = Segment(ids, mask, tuple(-0.5 * m for m in mask), turns)
    return Trajectory(rollout, 1, (segment,), {REWARD: reward}, 0)


def by_row(encoded, column):
    values, starts = encoded.rows.columns[column], encoded.rows.starts
    return [values[a:b].tolist() for a, b in itertools.pairwise(starts)]


def test_every_trained_token_of_a_rollout_carries_its_advantage_and_no_other_token_does():
    encoded = encode(Group(1, (two_turns(1.0, (None, None)), two_turns(0.0, (None, None)))))
    assert by_row(encoded, "advantages") == [[0, 0, 0.5, 0.5, 0, 0.5], [0, 0, -0.5, -0.5, 0, -0.5]]
    assert by_row(encoded, "temperature")[0] == [0, 0, 1, 1, 0, 0.5]
    assert by_row(encoded, "sampler_logprobs")[0] == [0, 0, -0.5, -0.5, 0, -0.5]
    assert encoded.rollout_tokens.tolist() == [3, 3]
    assert encoded.items == [[(0,)], [(1,)]]


def test_turns_with_credit_are_compared_with_the_same_turn_of_others():
    encoded = encode(Group(1, (two_turns(1.0, (2.0, 0.0)), two_turns(0.0, (0.0, 4.0)))))
    assert by_row(encoded, "advantages") == [[0, 0, 1, 1, 0, -2], [0, 0, -1, -1, 0, 2]]


def test_groups_are_not_compared_with_one_another():
    encoded = encode(group_of([1.0, 0.0]), group_of([10.0, 9.0], example="1"))
    assert [row[2] for row in by_row(encoded, "advantages")] == [0.5, -0.5, 0.5, -0.5]


def test_unknown_rewards_stay_out_and_zero_advantages_are_counted():
    encoded = encode(group_of([1.0, None, 0.0, 0.5]))
    assert [row[2] for row in by_row(encoded, "advantages")] == [0.5, 0, -0.5, 0]
    assert encoded.zero_advantage_tokens == 4
    assert encoded.trained_tokens == 8


def test_a_trajectory_that_is_too_long_is_dropped_whole_and_its_reward_still_compared():
    members = [*group_of([1.0, 0.0]).trajectories, trajectory((5, 6), (8, 9, 7), [-1.0] * 3, 2.0, rollout="long")]
    encoded = encode(Group(1, tuple(members)), max_length=4)
    [drop] = encoded.dropped
    assert (drop.what, drop.reason, drop.rollout_id, drop.detail) == (
        "trajectory",
        DropReason.TOO_LONG,
        "long",
        "5 tokens, max_length is 4",
    )
    assert [row[2] for row in by_row(encoded, "advantages")] == [0, -1]


def test_the_overlong_penalty_is_part_of_the_reward():
    preset = replace(PLAIN, overlong_buffer_share=0.5)
    short, long = trajectory((5,), (8,), [-1.0], 0.0), trajectory((5,), (8, 8, 8, 8), [-1.0] * 4, 0.0)
    encoded = encode(Group(1, (short, long)), preset=preset, length_limit=4)
    assert [row[1] for row in by_row(encoded, "advantages")] == [0.5, -0.5]


def test_only_samples_of_these_weights_are_held_against_the_trainer():
    members = [trajectory((5, 6), (8,), [-1.0], float(v or 0), version=v) for v in (3, 2, None)]
    assert encode(Group(1, tuple(members)), policy_version=3).current.tolist() == [True, False, False]


def test_greedy_samples_are_refused():
    member = trajectory((5, 6), (8,), [-1.0], 1.0, temperature=0.0, rollout="r7")
    with pytest.raises(ConfigError, match=r"rollout r7 was sampled at temperature 0.*set the target model's temperature"):
        encode(Group(1, (member, member)))


def test_a_missing_reward_is_named():
    with pytest.raises(DataError, match=r"has no reward 'speed'; it has \['outcome'\]"):
        encode(group_of([1.0, 0.0]), rewards=(RewardTerm("speed"),))


def test_segments_of_one_rollout_count_as_one_item():
    first = trajectory((5, 6), (8,), [-1.0], 1.0)
    second = trajectory((7,), (9, 9), [-1.0] * 2, 1.0)
    joined = replace(first, segments=(*first.segments, *second.segments))
    encoded = encode(Group(1, (joined, first)))
    assert encoded.items == [[(0,), (1,)], [(2,)]]
    assert encoded.rollout_tokens.tolist() == [3, 3, 1]


def test_a_masked_rollout_is_compared_and_not_trained():
    whole = group_of([1.0, 0.0, 5.0])
    members = (*whole.trajectories[:2], replace(whole.trajectories[2], trained=False))
    encoded = encode(replace(whole, trajectories=members))
    assert [row[2] for row in by_row(encoded, "advantages")] == [-1, -2]
    assert [(d.what, d.reason, d.rollout_id) for d in encoded.dropped] == [("trajectory", DropReason.TRUNCATED, "1-2")]


credit_values = st.one_of(st.none(), st.sampled_from([0.0, 0.5, 2.0]))
shapes = st.lists(
    st.tuples(st.sampled_from([0.0, 1.0]), st.lists(credit_values, min_size=1, max_size=4)), min_size=2, max_size=4
)


@given(shapes, st.booleans())
def test_every_trainable_token_of_a_rollout_carries_the_credit_of_its_turn(shape, by_state):
    """Against the definition: compared with the known credits of its cell if these are two or more, else the outcome."""
    states = [[7 * (index % 2) for index, _ in enumerate(credits)] for _, credits in shape]
    members = []
    for number, (reward, credits) in enumerate(shape):
        segments = []
        for index, credit in enumerate(credits):
            size = 1 + index
            turn = Turn(index, 1, 1 + size, index, FinishReason.STOP, 1.0, credit, states[number][index] if by_state else None)
            segments.append(Segment((5, *[6] * size), (0, *[1] * size), (0.0, *[-1.0] * size), (turn,)))
        members.append(Trajectory(f"r{number}", 1, tuple(segments), {REWARD: reward}, 0))
    rows = iter(by_row(encode(Group(1, tuple(members))), "advantages"))
    outcomes = [reward for reward, _ in shape]
    for number, (reward, credits) in enumerate(shape):
        for index, credit in enumerate(credits):
            cell = [
                other
                for n, (_, theirs) in enumerate(shape)
                for i, other in enumerate(theirs)
                if other is not None and (states[n][i] == states[number][index] if by_state else i == index)
            ]
            alone = credit is None or len(cell) < 2
            wanted = reward - fmean(outcomes) if alone else credit - fmean(cell)
            assert next(rows) == [0, *[pytest.approx(wanted, abs=1e-6)] * (1 + index)]
