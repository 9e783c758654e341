"""The shipped adapter keeps every promise; each promise has an adapter that breaks it, and it is found."""

import pytest

from nat_finetune.adapters.local_settings import LocalTrainerAdapterConfig
from nat_finetune.testing.conformance import ConformanceError, adapters, check_adapter
from nat_finetune.testing.conformance.adapters import CHECKS
from tests.testing.broken_adapters import BROKEN, BrokenConfig, LooseConfig


@pytest.mark.parametrize(("algorithm", "lora"), [pytest.param("grpo", {"rank": 4}, marks=pytest.mark.slow), ("dpo", None)])
def test_the_shipped_adapter_conforms(algorithm, lora):
    config = LocalTrainerAdapterConfig(algorithm={"name": algorithm}, learning_rate=1e-3, lora=lora, epochs=2)
    assert check_adapter(config) == list(CHECKS)


def test_a_right_one_passes():
    check_adapter(BrokenConfig())


@pytest.mark.parametrize(
    ("promise", "config"),
    [
        *((promise, BrokenConfig(fault=fault.__name__)) for promise, faults in BROKEN.items() for fault in faults),
        ("takes what it declares", BrokenConfig(fault="takes_episodes")),
        ("takes no unknown key", LooseConfig()),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.component_name}-{value.fault}",
)
def test_a_broken_promise_is_found(promise, config, monkeypatch):
    monkeypatch.setattr(adapters, "CHECKS", {promise: CHECKS[promise]})  # the others would take their time
    with pytest.raises(ConformanceError) as caught:
        check_adapter(config)
    assert any(problem.startswith(f"{promise}: ") for problem in caught.value.problems), caught.value


def test_every_promise_has_an_adapter_that_breaks_it():
    assert CHECKS.keys() == {*BROKEN, "takes no unknown key"}
