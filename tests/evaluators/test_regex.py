"""`regex`: a format, or a captured answer; a pattern that never ends is stopped."""

import pytest
from pydantic import ValidationError

from nat_finetune.evaluators.regex import RegexConfig, regex
from nat_finetune.types import Example, Rollout


async def score(answer, target=None, **config):
    async for evaluate in regex(RegexConfig(**config), None):
        said = await evaluate(Example(1, "x", target), Rollout("r", 1, 0, 0, (), output=answer))
        return None if said is None else said.value


@pytest.mark.parametrize(
    ("answer", "target", "config", "value"),
    [
        ("Answer: 7", None, {"pattern": r"Answer: \d+"}, 1.0),
        ("answer: 7", None, {"pattern": r"Answer: \d+"}, 0.0),
        ("answer: 7", None, {"pattern": r"Answer: \d+", "flags": ["ignore_case"]}, 1.0),
        (" 7 ", None, {"pattern": r"\d+", "whole": True}, 1.0),
        ("7 or 8", None, {"pattern": r"\d+", "whole": True}, 0.0),
        ("a\nb", None, {"pattern": "a.b", "flags": ["dotall"]}, 1.0),
        ("7 or 8", "8", {"pattern": r"\d+", "compare": True}, 1.0),
        ("7 or 8", "7", {"pattern": r"\d+", "compare": True}, 0.0),
        ("x=7", "7", {"pattern": r"x=(\d+)", "compare": True}, 1.0),
        ("x=7", "7", {"pattern": r"(x)=(?P<answer>\d+)", "compare": True}, 1.0),
        ("none", "7", {"pattern": r"x=(\d+)", "compare": True}, 0.0),
        ("x=7", None, {"pattern": r"x=(\d+)", "compare": True}, None),
    ],
)
async def test_scores(answer, target, config, value):
    assert await score(answer, target, **config) == value


async def test_a_search_without_end_is_stopped():
    with pytest.raises(TimeoutError):
        await score("a" * 40 + "c", pattern=r"(a|a|aa)+b$")


def test_refuses_what_is_no_pattern_and_what_it_would_ignore():
    with pytest.raises(ValidationError, match="is no regular expression"):
        RegexConfig(pattern="(")
    with pytest.raises(ValidationError, match="only used with `compare: true`"):
        RegexConfig(pattern="x", target_from="metadata.y")
