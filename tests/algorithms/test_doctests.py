"""The worked number in every docstring is true."""

import doctest
import importlib

import pytest

MODULES = [
    "logprobs",
    "reduce",
    "advantages",
    "gdpo",
    "credit",
    "importance",
    "kl",
    "policy_gradient",
    "dpo",
    "overlong",
]


@pytest.mark.parametrize("name", MODULES)
def test_worked_numbers(name: str) -> None:
    module = importlib.import_module(f"nat_finetune.algorithms.{name}")
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
