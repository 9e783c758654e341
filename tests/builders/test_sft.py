"""`sft_traj_builder`: what of the recorded work is imitated, and what is not."""

from dataclasses import replace

import pytest
from pydantic import ValidationError

from nat_finetune.builders.sft import SFTTrajBuilder, SFTTrajBuilderConfig
from nat_finetune.data.ledger import Ledger
from nat_finetune.errors import ConfigError, DataError
from nat_finetune.types import Collection, Demonstration, Dropped, RewardTerm, Target
from tests.builders.test_dpo import candidates
from tests.data.rollouts import TARGET, call, rollout


def build(*rollouts, target=TARGET, **config):
    return list(SFTTrajBuilder(SFTTrajBuilderConfig(**config), target).build(iter(rollouts)))


def kinds(made):
    return [item.completion if isinstance(item, Demonstration) else item.reason.value for item in made]


def test_the_best_candidate_of_a_turn_the_earliest_of_equals():
    assert kinds(build(candidates(0.2, 0.9, 0.9, 0.1))) == ["not_best", "o1", "not_best", "not_best"]


def test_a_best_one_that_is_not_good_enough():
    assert kinds(build(candidates(0.2, 0.3), min_score=0.5)) == ["not_best", "low_score"]
    assert kinds(build(candidates(0.2, 0.1 + 0.2), min_score=0.3)) == ["not_best", "o1"]


def test_names_that_were_emitted_instead():
    with pytest.raises(DataError, match="the names that were emitted: 'other'"):
        build(candidates(0.5, step="other"))


def test_calls_of_rollouts_that_earned_enough_with_their_sampled_ids():
    good = rollout(call(0, [1], [2, 3]), call(1, [9], [9], llm="judge"), call(2, [4], [5]), outcome=0.8)
    poor = rollout(call(0, [1], [2]), outcome=0.2, rollout_id="poor")
    unknown = rollout(call(0, [1], [2]), outcome=None, rollout_id="unknown")
    idle = rollout(outcome=1.0, rollout_id="idle")
    made = build(good, poor, unknown, idle, source="rollouts", min_reward=0.5)
    first, second, *rest = made
    assert (first.prompt_ids, first.completion_ids, second.completion_ids) == ((1,), (2, 3), (5,))
    assert kinds(rest) == ["low_reward", "unknown_reward", "no_trained_call"]


def test_every_call_ends_in_one_bucket():
    good = rollout(call(0, [1], [2, 3]), call(1, [4], [5]), outcome=0.8)
    poor = replace(rollout(call(0, [1], [2]), outcome=0.2), rollout_id="poor")
    made = build(good, poor, source="rollouts", min_reward=0.5)
    items = tuple(item for item in made if isinstance(item, Demonstration))
    ledger = Ledger()
    ledger.add([good, poor], Collection(items, "run", 0, "policy", tuple(d for d in made if isinstance(d, Dropped))), TARGET)
    rows = {(row["bucket"], row["reason"]): row["calls"] for row in ledger.to_dict()["rows"]}
    assert rows[("trained", None)] == 2
    assert rows[("dropped", "low_reward")] == 1


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"min_reward": 0.5}, "min_reward would be ignored: source is candidates"),
        ({"source": "rollouts", "min_reward": 1, "min_score": 1}, "min_score would be ignored: source is rollouts"),
        ({"source": "rollouts"}, "needs min_reward"),
    ],
)
def test_what_would_be_ignored_is_refused(config, message):
    with pytest.raises(ValidationError, match=message):
        SFTTrajBuilderConfig(**config)


def test_rollouts_need_one_reward():
    two = Target(("player",), "policy", (RewardTerm("a"), RewardTerm("b")))
    with pytest.raises(ConfigError, match="needs one reward, found 2"):
        build(source="rollouts", min_reward=0.5, target=two)
