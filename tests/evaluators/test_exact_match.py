"""`exact_match` compares what was answered with what is known, and says so where nothing is."""

import pytest

from nat_finetune.evaluators.exact_match import ExactMatchConfig, exact_match
from nat_finetune.types import Example, Rollout, Score


@pytest.mark.parametrize(
    ("output", "target", "ignore_case", "score"),
    [
        ("Paris\n", "Paris", False, 1.0),
        ("paris", "Paris", False, 0.0),
        ("paris", "Paris", True, 1.0),
        ("007", "7", False, 0.0),
        (7, "7", False, 1.0),
        (None, "7", False, 0.0),
        ("7", None, False, None),
    ],
)
async def test_scores(output, target, ignore_case, score):
    async for evaluate in exact_match(ExactMatchConfig(ignore_case=ignore_case), None):
        said = await evaluate(Example(1, "x", target), Rollout("r", 1, 0, 0, (), output=output))
        assert (said.value if isinstance(said, Score) else said) == score
