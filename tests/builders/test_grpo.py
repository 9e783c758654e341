"""`grpo_traj_builder`: its config and what it makes."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from nat_finetune.builders.grpo import GRPOTrajBuilder, GRPOTrajBuilderConfig, grpo_traj_builder
from nat_finetune.interfaces import Built
from nat_finetune.types import Dropped, FinishReason, Group
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
        ({"credit": "shaped", "discount": 0.5}, "discount would be ignored: only `credit: per_turn` uses it"),
        ({"compare_turns": "state"}, "compare_turns would be ignored: only `credit: per_turn or shaped` uses it"),
        ({"credit": "outcome", "discount": 1.0, "outcome_weight": 0.0}, "discount would be ignored"),
        ({"credit": "per_turn", "discount": 1.5}, "less than or equal to 1"),
        ({"credit": "per_turn", "outcome_weight": -1}, "greater than or equal to 0"),
        ({"credit": "dense"}, "'outcome', 'per_turn' or 'shaped'"),
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


def test_shaped_credit_is_the_outcome_and_what_the_turn_itself_was_paid():
    rollouts = [
        rollout(
            call(0, [1], [2]),
            paid(1, 0, 0.25),
            call(2, [1], [2]),
            call(3, [1], [2]),
            paid(4, 3, o),
            rollout_id=f"r{o}",
            outcome=o,
        )
        for o in (0.0, 1.0)
    ]
    (group,) = build(rollouts, credit="shaped")
    assert credits(group) == [[0.25, None, 0.0], [1.25, None, 2.0]]
    (group,) = build(rollouts, credit="shaped", outcome_weight=0.0)
    assert credits(group) == [[0.25, None, 0.0], [0.25, None, 1.0]]


def test_turns_can_be_compared_by_the_prompt_that_they_had():
    rollouts = [
        rollout(call(0, [1], [2]), call(1, [1, 2, n], [2]), call(2, [9], [2]), rollout_id=f"r{n}", outcome=float(n))
        for n in (3, 4)
    ]
    cells = [[turn.cell for segment in t.segments for turn in segment.turns] for t in build(rollouts)[0].trajectories]
    assert cells[0] == cells[1] == [("index", 0), ("index", 1), ("index", 2)]
    (group,) = build(rollouts, credit="per_turn", compare_turns="state")
    first, second = ([turn.cell for segment in t.segments for turn in segment.turns] for t in group.trajectories)
    assert (first[0], first[2]) == (second[0], second[2])
    assert len({*first, *second}) == 4


def cut(*, outcome, rollout_id):
    whole = rollout(call(0, [1], [2]), call(1, [1, 2], [3]), outcome=outcome, rollout_id=rollout_id)
    first, second = whole.events
    return replace(whole, events=(first, replace(second, finish_reason=FinishReason.LENGTH)))


@pytest.mark.parametrize(
    ("truncated", "trained", "dropped"),
    [("keep", [True, True, True], []), ("mask", [True, True, False], []), ("drop", [True, True], ["truncated"])],
)
def test_truncated_rollouts_are_kept_masked_or_dropped(truncated, trained, dropped):
    rollouts = [rollout(call(0, [1], [2]), rollout_id=f"r{o}", outcome=o) for o in (0.0, 1.0)]
    made = build([*rollouts, cut(outcome=0.5, rollout_id="cut")], truncated=truncated)
    assert [t.trained for group in made if isinstance(group, Group) for t in group.trajectories] == trained
    assert [made.reason for made in made if isinstance(made, Dropped)] == dropped


def test_a_group_with_nothing_but_truncated_rollouts_is_dropped():
    (drop,) = build([cut(outcome=o, rollout_id=f"r{o}") for o in (0.0, 1.0)], truncated="mask")
    assert (drop.what, drop.reason) == ("group", "truncated")


def warnings(rollouts, **config):
    made = build(rollouts, **config)
    items = tuple(item for item in made if isinstance(item, Group))
    dropped = tuple(item for item in made if isinstance(item, Dropped))
    return GRPOTrajBuilder(GRPOTrajBuilderConfig(**config), TARGET).warnings(Built(0, items, dropped))


def test_what_is_likely_a_mistake_is_said():
    unpaid = [rollout(call(0, [1], [2]), rollout_id=f"r{o}", outcome=o) for o in (0.0, 1.0)]
    assert warnings(unpaid) == []
    for credit in ("per_turn", "shaped"):
        (said,) = warnings(unpaid, credit=credit)
        assert "no turn has a known step reward" in said
    once = rollout(call(0, [1], [2]), paid(1, 0, 1.0), rollout_id="p", outcome=0.5)
    assert warnings([*unpaid, once], credit="per_turn") == []
    (said,) = warnings(unpaid[:1])
    assert "nothing to compare" in said
