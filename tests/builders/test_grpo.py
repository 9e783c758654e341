"""`grpo_traj_builder`: its config and what it makes."""

import asyncio
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from nat_finetune.builders.grpo import GRPOTrajBuilder, GRPOTrajBuilderConfig, grpo_traj_builder
from nat_finetune.types import Group
from tests.data.rollouts import TARGET, call, paid, rollout


def build(rollouts, **config):
    return list(GRPOTrajBuilder(GRPOTrajBuilderConfig(**config), TARGET).build(iter(rollouts)))


def credits(group):
    return [[turn.credit for segment in t.segments for turn in segment.turns] for t in group.trajectories]


def test_its_factory_reads_the_runs_target():
    async def made():
        return [builder async for builder in grpo_traj_builder(GRPOTrajBuilderConfig(), SimpleNamespace(target=TARGET))]

    (builder,) = asyncio.run(made())
    (group,) = builder.build([rollout(call(0, [1], [2]), rollout_id=f"r{o}", outcome=o) for o in (0.0, 1.0)])
    assert isinstance(group, Group)
    assert builder.generations == GRPOTrajBuilderConfig().generations == 8


def test_what_it_declares():
    config = GRPOTrajBuilderConfig(num_generations=2)
    assert (config.makes, config.token_level, config.generations, config.candidate_step()) == ("group", True, 2, None)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_generations": 1}, "num_generations\n.*at least 2, found 1: .*others of its own example"),
        ({"discount": 0.5}, "discount would be ignored: only `credit: per_turn` uses it"),
        ({"credit": "outcome", "discount": 1.0, "outcome_weight": 0.0}, "discount, outcome_weight would be ignored"),
        ({"credit": "per_turn", "discount": 1.5}, "less than or equal to 1"),
        ({"credit": "per_turn", "outcome_weight": -1}, "greater than or equal to 0"),
        ({"credit": "shaped"}, "'outcome' or 'per_turn'"),
    ],
)
def test_what_it_refuses(config, message):
    with pytest.raises(ValidationError, match=message):
        GRPOTrajBuilderConfig(**config)


def test_credit_by_turn_is_what_the_config_says():
    rollouts = [
        rollout(call(0, [1], [2]), paid(1, 0, 1.0), call(2, [1], [2]), paid(3, 2, o), rollout_id=f"r{o}", outcome=o)
        for o in (0.0, 1.0)
    ]
    (group,) = build(rollouts, credit="per_turn", discount=0.5, outcome_weight=2.0)
    assert credits(group) == [[1.0, 0.0], [1.0 + 0.5 * 3.0, 3.0]]
    (group,) = build(rollouts)
    assert credits(group) == [[None, None], [None, None]]


def test_without_a_trained_reward_credit_alone_compares():
    rollouts = [rollout(call(0, [1], [2]), paid(1, 0, v), rollout_id=f"r{v}") for v in (0.0, 1.0)]
    target = type(TARGET)(TARGET.functions, TARGET.llm)
    (group,) = GRPOTrajBuilder(GRPOTrajBuilderConfig(credit="per_turn"), target).build(rollouts)
    assert credits(group) == [[0.0], [1.0]]


def test_one_example_at_a_time_never_all_in_one_group():
    rollouts = [rollout(call(0, [1], [2]), rollout_id=f"r{e}", example_id=e, outcome=float(e)) for e in range(3)]
    assert [(made.what, made.reason) for made in build(rollouts)] == [("group", "too_few_rollouts")] * 3
