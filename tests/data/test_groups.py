"""Groups hold rollouts of one example that differ in something; everything else is counted."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nat_finetune.data.groups import build_groups
from nat_finetune.data.keys import example_key
from nat_finetune.data.trajectories import Credit
from nat_finetune.types import Cause, Dropped, DropReason, Failure, Group, RewardCondition, RewardTerm, Target
from tests.data.rollouts import TARGET, call, paid, rollout


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
        rollout(call(0, [1], [2]), outcome=float("nan"), rollout_id="nan", example_id="none"),
    ]
    made = list(build_groups(rollouts, TARGET, Credit()))
    assert [(drop.what, drop.reason, drop.detail) for drop in made] == [
        ("rollout", DropReason.UNKNOWN_REWARD, "outcome"),
        ("rollout", DropReason.INFRASTRUCTURE_FAILURE, "m"),
        ("rollout", DropReason.UNKNOWN_REWARD, "outcome"),
        ("group", DropReason.FLAT_GROUP, ""),
        ("group", DropReason.TOO_FEW_ROLLOUTS, "1 usable"),
        ("group", DropReason.TOO_FEW_ROLLOUTS, "0 usable"),
    ]


def test_a_failure_that_the_policy_caused_is_compared_like_any_other():
    failed = Failure(
        rollout_id="f", seq=9, path=(), start=0.0, end=0.0, stage="workflow", cause=Cause.POLICY, error_type="E", message="m"
    )
    rollouts = [rollout(call(0, [1], [2]), rollout_id="a"), replace(rollout(call(0, [1], [2]), outcome=0.0), failure=failed)]
    (group,) = build_groups(rollouts, TARGET, Credit())
    assert [t.rewards["outcome"] for t in group.trajectories] == [1.0, 0.0]


def two(*values, outcomes=(1.0, 1.0)):
    """Two rollouts of one turn each, paid so much."""
    return [
        rollout(call(0, [1], [2]), *([] if value is None else [paid(1, 0, value)]), rollout_id=f"r{i}", outcome=outcome)
        for i, (value, outcome) in enumerate(zip(values, outcomes, strict=True))
    ]


@pytest.mark.parametrize(
    ("rollouts", "per_turn", "flat"),
    [
        (two(0.0, 1.0), True, False),
        (two(0.0, 1.0), False, True),
        (two(0.5, 0.5), True, True),
        (two(0.5, None), True, True),  # the outcome pays the second, and it is equal
        (two(0.5, 0.5, outcomes=(0.0, 1.0)), True, False),
        (two(None, None, outcomes=(0.7, 0.1 + 0.2 + 0.4)), True, False),
    ],
)
def test_a_group_is_flat_only_if_nothing_differs(rollouts, per_turn, flat):
    (made,) = build_groups(rollouts, TARGET, Credit(per_turn=per_turn))
    assert isinstance(made, Dropped) == flat
    assert not flat or made.reason is DropReason.FLAT_GROUP


@given(st.lists(st.tuples(st.sampled_from([1, "1", 2]), st.sampled_from([None, 0.0, 0.5])), max_size=10))
def test_groups_hold_every_usable_rollout_of_their_example_once(shape):
    rollouts = [rollout(call(0, [1], [2]), outcome=o, rollout_id=f"r{i}", example_id=e) for i, (e, o) in enumerate(shape)]
    made = list(build_groups(iter(rollouts), TARGET, Credit()))
    for group in (item for item in made if isinstance(item, Group)):
        usable = [
            r.rollout_id
            for r in rollouts
            if example_key(r.example_id) == example_key(group.example_id) and r.rewards["outcome"] is not None
        ]
        assert [t.rollout_id for t in group.trajectories] == usable
        assert len({t.rewards["outcome"] for t in group.trajectories}) == 2
    dropped = sum(1 for item in made if isinstance(item, Dropped) and item.what == "group")
    assert dropped + sum(isinstance(item, Group) for item in made) == len({example_key(r.example_id) for r in rollouts})


def scored(**rewards):
    """Rollouts of one turn, with the n-th of each reward's values."""
    count = len(next(iter(rewards.values())))
    return [
        replace(rollout(call(0, [1], [2]), rollout_id=f"r{i}"), rewards={name: values[i] for name, values in rewards.items()})
        for i in range(count)
    ]


BOTH = Target(("player",), "policy", (RewardTerm("a"), RewardTerm("b")))
APART = replace(BOTH, rewards_apart=True)


def test_a_group_whose_sums_tie_is_flat_only_where_sums_are_compared():
    tied = scored(a=[0.1, 0.3], b=[0.2, 0.0])
    assert [made.reason for made in build_groups(tied, BOTH, Credit())] == [DropReason.FLAT_GROUP]
    (group,) = build_groups(tied, APART, Credit())
    assert [dict(t.rewards) for t in group.trajectories] == [{"a": 0.1, "b": 0.2}, {"a": 0.3, "b": 0.0}]
    (flat,) = build_groups(scored(a=[0.7, 0.7], b=[0.0, 0.0]), APART, Credit())
    assert flat.reason is DropReason.FLAT_GROUP


def test_one_known_reward_is_enough_where_they_are_compared_apart():
    partly = scored(a=[1.0, None, 0.0, None], b=[None, 1.0, 0.0, None])
    (drop, group) = build_groups(partly, APART, Credit())
    assert (drop.rollout_id, drop.reason, drop.detail) == ("r3", DropReason.UNKNOWN_REWARD, "a, b")
    assert len(group.trajectories) == 3
    details = [made.detail for made in build_groups(partly, BOTH, Credit()) if made.reason is DropReason.UNKNOWN_REWARD]
    assert details == ["b", "a", "a, b"]


def test_conditions_are_applied_before_anything_is_compared():
    short = RewardTerm("b", condition=RewardCondition("a", at_least=1.0))
    target = Target(("player",), "policy", (short,))
    (group,) = build_groups(scored(a=[1.0, 0.0], b=[0.5, 0.9]), target, Credit())
    assert [dict(t.rewards) for t in group.trajectories] == [{"b": 0.5}, {"b": 0.0}]
    (flat,) = build_groups(scored(a=[0.0, 0.0], b=[0.5, 0.9]), target, Credit())
    assert flat.reason is DropReason.FLAT_GROUP
