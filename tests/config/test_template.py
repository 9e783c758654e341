"""Prompt templates: filled in one pass, nothing evaluated, other braces left alone."""

import pytest

from nat_finetune.config.template import check_template, fill

VALUES = {"input": {"a": 1, "list": ["x", "y"]}, "answer": "see {input} and {{answer}}"}


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("{input.a} {input.list.1}", "1 y"),
        ("{input.list}", '["x", "y"]'),
        ("{answer}", "see {input} and {{answer}}"),  # what is filled in is not read again
        ('{"score": 3} {} {0} {A}', '{"score": 3} {} {0} {A}'),
        ("{{answer}}", "{answer}"),
        ("{answer!r} {answer.__class__}", None),
    ],
)
def test_fill(text, filled):
    if filled is None:
        with pytest.raises(KeyError, match="__class__"):
            fill(text, VALUES)
    else:
        assert fill(text, VALUES) == filled


def test_places_are_known_and_the_needed_ones_are_there():
    assert check_template("{input.a}", ["input"], needed=["input"]) == "{input.a}"
    with pytest.raises(ValueError, match=r"there is no \{imput\} \(did you mean 'input'\?\)"):
        check_template("{imput}", ["input"])
    with pytest.raises(ValueError, match=r"has no \{input\}"):
        check_template("hello", ["input"], needed=["input"])
