"""`numeric_match` reads numbers as people and models write them, exactly."""

from fractions import Fraction

import pytest

from nat_finetune.evaluators.numeric_match import NumericMatchConfig, number, numeric_match
from nat_finetune.types import Example, Rollout


@pytest.mark.parametrize(
    ("text", "find", "expected"),
    [
        ("so it is 1,234.5.", "last", "1234.5"),
        ("3/4", "last", "3/4"),
        (r"x = \frac{3}{4}$", "last", "3/4"),
        (r"\dfrac{-1}{2}", "whole", "-1/2"),
        ("12.5%", "last", "1/8"),
        ("-3e-4", "whole", "-0.0003"),
        ("\u22123", "whole", "-3"),
        ("$5", "whole", "5"),
        ("first 7, then 8", "first", "7"),
        ("first 7, then 8", "last", "8"),
        ("first 7, then 8", "whole", None),
        (r"\boxed{6} or \boxed{ 7 } and 8", "boxed", "7"),
        (r"\boxed{\frac{1}{3}}", "boxed", "1/3"),
        ("no box: 7", "boxed", None),
        ("version v1.2 is out", "last", None),
        ("3/0", "last", None),
        ("9" * 5000, "last", None),
        ("0.1", "whole", "1/10"),
        ("no number", "last", None),
        (True, "last", None),
        (float("nan"), "last", None),
        (7, "boxed", "7"),
    ],
)
def test_reads(text, find, expected):
    assert number(text, find) == (None if expected is None else Fraction(expected))


async def score(answer, target, **config):
    async for evaluate in numeric_match(NumericMatchConfig(**config), None):
        return await evaluate(Example(1, "x", target), Rollout("r", 1, 0, 0, (), output=answer))


@pytest.mark.parametrize(
    ("answer", "target", "config", "value"),
    [
        ("it is 42", "42", {}, 1.0),
        ("it is 42.5", 42, {}, 0.0),
        ("3.14", "3.14159", {"absolute_tolerance": 0.01}, 1.0),
        ("101", "100", {"relative_tolerance": 0.01}, 1.0),
        ("102", "100", {"relative_tolerance": 0.01}, 0.0),
        ("50%", "0.5", {}, 1.0),
        ("50%", "50", {"percent": False}, 1.0),
        ("1/3", "0.333", {}, 0.0),
    ],
)
async def test_scores(answer, target, config, value):
    assert (await score(answer, target, **config)).value == value


async def test_says_what_it_found():
    assert "no number" in (await score("dunno", "4")).reasoning
    assert (await score("5", "4")).reasoning == "found 5, expected 4"
    assert await score("5", None) is None


async def test_a_target_that_is_no_number_is_no_fault_of_the_policy():
    with pytest.raises(Exception, match="known answer is no number: 'four'"):
        await score("4", "four")
