"""The shipped trainers keep every promise; each promise has a trainer that breaks it, and it is found."""

import pytest

from nat_finetune.testing.conformance import ConformanceError, check_trainer
from nat_finetune.testing.conformance.trainers import CHECKS
from nat_finetune.trainers.backend import BackendTrainerConfig
from nat_finetune.trainers.on_policy import OnPolicyTrainerConfig
from nat_finetune.trainers.preference import PreferenceTrainerConfig
from tests.testing.broken_trainers import BROKEN, BrokenConfig, IgnoringConfig, MistakenConfig, UnfitConfig


@pytest.mark.parametrize(
    "config",
    [
        BackendTrainerConfig(),
        OnPolicyTrainerConfig(),
        PreferenceTrainerConfig(),
        PreferenceTrainerConfig(num_runs=2, num_rounds=2, reference="last_round"),
        PreferenceTrainerConfig(num_runs=3, sft_warmup_epochs=2),
    ],
    ids=repr,
)
def test_shipped_trainers_conform(config):
    assert check_trainer(config) == list(CHECKS)


def test_a_right_one_passes():
    check_trainer(BrokenConfig())


@pytest.mark.parametrize(
    ("promise", "config"),
    [
        *((promise, BrokenConfig(order=order.__name__)) for promise, orders in BROKEN.items() for order in orders),
        ("fits what it declares", UnfitConfig()),
        ("ignores no key", IgnoringConfig()),
        ("ignores no key", MistakenConfig()),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.component_name}-{value.order}",
)
def test_a_broken_promise_is_found(promise, config):
    with pytest.raises(ConformanceError) as caught:
        check_trainer(config)
    assert any(problem.startswith(f"{promise}: ") for problem in caught.value.problems), caught.value


def test_every_promise_has_a_trainer_that_breaks_it():
    assert CHECKS.keys() == {*BROKEN, "fits what it declares"}
