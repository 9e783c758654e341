"""Where answers and known ones come from, the same for every evaluator."""

import pytest
from pydantic import ValidationError

from nat_finetune.errors import InfrastructureFailure
from nat_finetune.evaluators.exact_match import ExactMatchConfig, exact_match
from nat_finetune.interfaces import RangedEvaluator
from nat_finetune.types import Cause, Example, Failure, FinishReason, ModelCall, Rollout, SamplingParams, Score, ScoreRange

AT = {"rollout_id": "r", "path": ("<workflow>",), "start": 0.0, "end": 0.0}
CALLS = tuple(
    ModelCall(
        **AT, seq=seq, llm="policy", messages=(), message={"role": "assistant", "content": text},
        finish_reason=FinishReason.STOP, sampling=SamplingParams(max_tokens=1),
    )
    for seq, text in enumerate(("no", "Paris"))
)  # fmt: skip
OUTPUT = {"move": {"to": "Paris"}, "list": ["Rome", "Paris"]}


async def score(example, rollout, **config):
    async for evaluate in exact_match(ExactMatchConfig(**config), None):
        assert isinstance(evaluate, RangedEvaluator)
        assert evaluate.score_range == ScoreRange(0.0, 1.0)
        return await evaluate(example, rollout)


@pytest.mark.parametrize("source", ["output.move.to", "output.list.1", "last_message"])
async def test_parts_of_the_rollout(source):
    rollout = Rollout("r", 1, 0, 0, CALLS, output=OUTPUT)
    assert await score(Example(1, "x", "Paris"), rollout, answer_from=source) == 1.0
    assert await score(Example(1, "x", "Oslo"), rollout, answer_from=source) == 0.0


@pytest.mark.parametrize(
    ("source", "target", "metadata"), [("target.city", {"city": "Paris"}, {}), ("metadata.gold", None, {"gold": "Paris"})]
)
async def test_parts_of_the_example(source, target, metadata):
    example = Example(1, "x", target, metadata=metadata)
    assert await score(example, Rollout("r", 1, 0, 0, (), output="Paris"), target_from=source) == 1.0


async def test_a_part_that_is_not_there_names_what_is():
    with pytest.raises(InfrastructureFailure, match=r"output.mvoe: there is no 'mvoe' in what has move, list"):
        await score(Example(1, "x", "Paris"), Rollout("r", 1, 0, 0, (), output=OUTPUT), answer_from="output.mvoe")


async def test_a_failed_rollout_scores_lowest_with_the_reason():
    failure = Failure(**AT, seq=0, stage="workflow", cause=Cause.POLICY, error_type="PolicyFailure", message="no move")
    rollout = Rollout("r", 1, 0, 0, CALLS, failure=failure)
    assert await score(Example(1, "x", "Paris"), rollout, answer_from="last_message") == Score(
        0.0, "the rollout failed: no move"
    )
    assert await score(Example(1, "x"), rollout) is None


@pytest.mark.parametrize("source", ["outptu", "output.", "output[0]", "__class__"])
def test_other_sources_are_refused(source):
    with pytest.raises(ValidationError):
        ExactMatchConfig(answer_from=source)
