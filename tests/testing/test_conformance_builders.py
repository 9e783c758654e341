"""The shipped builders keep every promise; each promise has a builder that breaks it, and it is found."""

import re

import pytest

from nat_finetune.builders.dpo import DPOTrajBuilderConfig
from nat_finetune.builders.grpo import GRPOTrajBuilderConfig
from nat_finetune.builders.preference import PreferenceDatasetBuilderConfig
from nat_finetune.builders.sft import SFTTrajBuilderConfig
from nat_finetune.testing import FakeRecorder
from nat_finetune.testing.conformance import ConformanceError, check_builder
from nat_finetune.testing.conformance.builders import CHECKS
from tests.testing.broken_builders import BROKEN, BrokenConfig, CountingConfig, IgnoringConfig, LooseConfig

JUDGMENTS = {"_type": "jsonl", "file_path": "sample.jsonl"}


@pytest.mark.parametrize(
    ("config", "idle"),
    [
        (GRPOTrajBuilderConfig(num_generations=4), ()),
        (GRPOTrajBuilderConfig(num_generations=2, credit="per_turn"), ()),
        (GRPOTrajBuilderConfig(num_generations=3, credit="shaped", compare_turns="state"), ()),
        (SFTTrajBuilderConfig(), ()),
        (SFTTrajBuilderConfig(source="rollouts", min_reward=0.4), ()),
        (DPOTrajBuilderConfig(), ("require_multiple_candidates",)),  # as in NAT: without effect
        (DPOTrajBuilderConfig(exhaustive_pairs=False), ("require_multiple_candidates", "max_pairs_per_turn")),
    ],
    ids=repr,
)
def test_shipped_builders_conform(config, idle):
    assert check_builder(config, without_effect=idle) == list(CHECKS)


def test_builders_of_records_conform(dataset_config):
    config = PreferenceDatasetBuilderConfig(dataset=dataset_config)
    shown_by_other_records = ("format", "exhaustive_pairs", "min_score_diff", "max_pairs_per_record", "several_messages")
    check_builder(config, without_effect=(*shown_by_other_records, "on_bad_record"))


@pytest.fixture
def dataset_config(tmp_path):
    from nat_finetune.datasets.files import JSONLDatasetConfig

    return JSONLDatasetConfig(file_path=str(tmp_path / "sample.jsonl"))


def test_a_right_one_passes():
    check_builder(BrokenConfig())


@pytest.mark.parametrize(
    ("promise", "config"),
    [
        *((promise, BrokenConfig(build=build.__name__)) for promise, builds in BROKEN.items() for build in builds),
        ("asks for as many rollouts as its config", CountingConfig()),
        ("ignores no key", IgnoringConfig()),
        ("ignores no key", LooseConfig()),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.component_name}-{value.build}",
)
def test_a_broken_promise_is_found(promise, config):
    with pytest.raises(ConformanceError, match=re.escape(f"{config.component_name!r} does not conform")) as caught:
        check_builder(config)
    assert any(problem.startswith(f"{promise}: ") for problem in caught.value.problems), caught.value


def test_every_promise_has_a_builder_that_breaks_it():
    assert CHECKS.keys() == {*BROKEN, "asks for as many rollouts as its config", "ignores no key"}


def test_rollouts_of_ones_own_take_the_place_of_the_samples():
    record = FakeRecorder()
    record.model_call()
    with pytest.raises(ConformanceError, match="it made nothing of 1 that were given"):
        check_builder(BrokenConfig(), given=[record.rollout(rewards={"outcome": 1.0})])
