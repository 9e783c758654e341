"""`dpo_traj_builder`: NAT's fields and defaults, and rollouts that broke down."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from nat_finetune.builders.dpo import DPOTrajBuilder, DPOTrajBuilderConfig, dpo_traj_builder
from nat_finetune.errors import DataError
from nat_finetune.types import CandidateScored, Cause, Failure, PreferencePair
from tests.data.rollouts import TARGET, rollout


def candidates(*scores, step="dpo_candidate_move", rollout_id="r"):
    return rollout(
        *(
            CandidateScored(
                rollout_id=rollout_id,
                seq=seq,
                path=("player",),
                start=0.0,
                end=0.0,
                step_name=step,
                turn_id="t",
                input="P",
                output=f"o{seq}",
                score=score,
            )
            for seq, score in enumerate(scores)
        ),
        rollout_id=rollout_id,
    )


def build(*rollouts, **config):
    return list(DPOTrajBuilder(DPOTrajBuilderConfig(**config), TARGET).build(iter(rollouts)))


def texts(made):
    return [(pair.chosen, pair.rejected) for pair in made if isinstance(pair, PreferencePair)]


def failed(it, cause):
    return replace(
        it,
        failure=Failure(
            rollout_id="r", seq=9, path=(), start=0.0, end=0.0, stage="tool", cause=cause, error_type="E", message="down"
        ),
    )


def test_nats_fields_have_nats_defaults():
    assert DPOTrajBuilderConfig().model_dump() == {
        "ttc_step_name": "dpo_candidate_move",
        "exhaustive_pairs": True,
        "min_score_diff": 0.0,
        "min_chosen_score": None,
        "max_pairs_per_turn": None,
        "reward_from_score_diff": True,
        "require_multiple_candidates": True,
        "num_generations": 1,
    }


def test_what_it_declares():
    config = DPOTrajBuilderConfig(ttc_step_name="move", num_generations=3)
    assert (config.makes, config.token_level, config.candidate_step(), config.generations) == ("pair", False, "move", 3)


@pytest.mark.parametrize("config", [{"min_score_diff": -0.1}, {"max_pairs_per_turn": 0}, {"num_generations": 0}])
def test_what_it_refuses(config):
    with pytest.raises(ValidationError, match=next(iter(config))):
        DPOTrajBuilderConfig(**config)


def test_every_field_does_what_it_says():
    rollout_ = candidates(1.0, 0.5, 0.0)
    assert texts(build(rollout_)) == [("o0", "o2"), ("o0", "o1"), ("o1", "o2")]
    assert texts(build(rollout_, exhaustive_pairs=False)) == [("o0", "o2")]
    assert texts(build(rollout_, min_score_diff=0.6)) == [("o0", "o2")]
    assert texts(build(rollout_, max_pairs_per_turn=2)) == [("o0", "o2"), ("o0", "o1")]
    assert [pair.reward for pair in build(rollout_)] == [1.0, 0.5, 0.5]
    assert [pair.reward for pair in build(rollout_, reward_from_score_diff=False)] == [1.0, 1.0, 0.5]
    assert [made.reason for made in build(candidates(1.0), require_multiple_candidates=False)] == ["single_candidate"]
    with pytest.raises(DataError, match="'dpo_candidate_move'"):
        build(rollout_, ttc_step_name="other")


def test_its_factory_reads_the_runs_target():
    async def made():
        return [b async for b in dpo_traj_builder(DPOTrajBuilderConfig(num_generations=2), SimpleNamespace(target=TARGET))]

    (builder,) = asyncio.run(made())
    assert builder.generations == 2
    assert texts(builder.build([candidates(1.0, 0.0)])) == [("o0", "o1")]


def test_a_rollout_that_broke_down_is_left_out_whole_one_that_the_policy_ended_is_not():
    made = build(failed(candidates(1.0, 0.0), Cause.INFRASTRUCTURE), failed(candidates(0.0, 1.0), Cause.POLICY))
    assert texts(made) == [("o1", "o0")]
    assert [(m.what, m.reason, m.detail) for m in made[1:]] == [("rollout", "infrastructure_failure", "down")]


def test_counts_go_on_over_several_builds():
    builder = DPOTrajBuilder(DPOTrajBuilderConfig(), TARGET)
    for _ in range(2):
        list(builder.build([candidates(1.0, 0.0)]))
    assert (builder.counts.pairs, builder.counts.turns, builder.counts.examples_with_pair) == (2, 2, 1)
