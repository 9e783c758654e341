"""Which checkpoint is a run's result, as the evaluations in its folder say."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from nat_finetune.config.schema import FinetuningConfig, ValidationConfig
from nat_finetune.registry import Registry
from nat_finetune.runstore import RunState, RunStore
from nat_finetune.steps.best import best_checkpoint, describe_choice, patience_message
from nat_finetune.types import Estimate, EvalResult, PolicyRef


def settings(**given):
    plain = {"metrics": None, "select": "quality", "mode": "max", "patience": None}
    return ValidationConfig.model_construct(**{**plain, **given})


def validate(store, steps_done, values, version=None):
    """The validation set after so many steps: example by example."""
    known = [value for value in values if value is not None]
    mean = sum(known) / len(known) if known else None
    scores = {str(index): value for index, value in enumerate(values)}
    estimate = Estimate(mean, None, None, len(known))
    policy = PolicyRef("policy", steps_done if version is None else version)
    result = EvalResult("validation", policy, {"quality": scores}, {key: key for key in scores}, {"quality": estimate}, 1.0)
    store.save_evaluation(f"validation-{steps_done:05d}", result)


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    store = RunStore.create(tmp_path / "run")
    state = store.state()
    state.checkpoint, state.steps_done = "step-00008", 8
    store.commit(state)
    return store


def test_the_best_is_the_highest_the_earliest_of_equals_and_never_the_untrained(store):
    for steps_done, value in ((0, 0.9), (2, 0.3), (4, 0.6), (6, 0.6), (8, 0.5)):
        validate(store, steps_done, [value] * 8)
    best = best_checkpoint(store, settings())
    assert best is not None
    assert (best.checkpoint, best.policy.version, best.waited) == ("step-00004", 4, 2)
    assert best_checkpoint(store, settings(mode="min")).checkpoint == "step-00002"
    assert best_checkpoint(store, settings(select=None)) is None
    assert best_checkpoint(store, None) is None


def test_an_unknown_value_is_never_best(store):
    validate(store, 2, [0.1] * 8)
    validate(store, 4, [None] * 8)
    assert best_checkpoint(store, settings(mode="min")).checkpoint == "step-00002"


def test_a_step_before_the_first_update_is_no_checkpoint(store):
    validate(store, 2, [0.9] * 8, version=0)
    assert best_checkpoint(store, settings()) is None


def test_patience_counts_validations_since_the_best(store):
    for steps_done, value in ((2, 0.6), (4, 0.5), (6, 0.6)):
        validate(store, steps_done, [value] * 8)
    message = patience_message(best_checkpoint(store, settings()), settings(patience=2))
    assert message is not None
    assert "quality on the validation set has not become better than 0.600 after step 2, in 2 validations since" in message
    assert patience_message(best_checkpoint(store, settings()), settings(patience=3)) is None
    assert patience_message(best_checkpoint(store, settings()), settings()) is None


@pytest.mark.parametrize(
    ("after", "verdict"),
    [
        ([0.8, 0.9] * 6, "better than the untrained policy there, +0.450 ["),
        ([0.1, 0.8, 0.2, 0.6] * 3, "no significant gain over the untrained policy there, +0.025 ["),
    ],
)
def test_the_report_says_why_and_whether_it_gained(store, after, verdict):
    validate(store, 0, [0.3, 0.5] * 6)
    validate(store, 4, after)
    validate(store, 8, [0.0] * 12)
    choice = describe_choice(store, FinetuningConfig().model_copy(update={"validation": settings()}))
    assert choice["name"] == "step-00004"
    assert choice["why"].startswith("the highest quality on the validation set, ")
    assert f"of 2 validated checkpoints; {verdict}" in choice["why"]
    assert choice["gain"]["n"] == 12


def test_without_a_metric_the_last_checkpoint_is_the_result(store):
    choice = describe_choice(store, FinetuningConfig())
    assert choice["name"] == "step-00008"
    assert choice["why"] == "the last one: finetuning.validation.select names no metric to choose by"
    store.commit(RunState())
    assert describe_choice(store, FinetuningConfig()) is None


def test_patience_without_a_metric_is_refused():
    with pytest.raises(ValidationError, match="patience would be ignored: select names no metric"):
        ValidationConfig.model_validate(
            {"dataset": {"_type": "jsonl", "file_path": "x"}, "patience": 3}, context={"registry": Registry.installed()}
        )


def test_the_selecting_metric_is_evaluated_too():
    assert settings(metrics=["other"]).names(()) == ("other", "quality")
    assert settings().names(("quality", "reward")) == ("quality", "reward")
