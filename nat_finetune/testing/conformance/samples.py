"""What builders are examined with: rollouts and records of every sort that a run can meet."""

from __future__ import annotations

from collections.abc import Iterator

from nat_finetune.testing.parts import REWARD
from nat_finetune.testing.rollouts import WORKFLOW, FakeRecorder
from nat_finetune.types import Cause, FinishReason, ModelCall, Record, Rollout, Target

SORTS = ("mixed", "steady", "flat", "unknown", "broken", "refused", "outside", "silent", "cut", "text")
"""Examples, by what their rollouts are like."""


def sample_rollouts(
    target: Target, *, generations: int, candidate_step: str | None = None, token_ids: bool = True
) -> list[Rollout]:
    """`generations` rollouts (at least two) of examples of every sort; the target's function and model make the calls.

    With `candidate_step`, every turn proposes three scored candidates under that name.
    """
    return [
        _rollout(sort, generation, target, candidate_step, token_ids)
        for sort in SORTS
        for generation in range(max(generations, 2))
    ]


def _rollout(sort: str, generation: int, target: Target, step: str | None, token_ids: bool) -> Rollout:
    record = FakeRecorder(sort, generation=generation, llm=target.llm)
    earned: float | None = generation % 2 / (generation + 1) if sort != "flat" else 1.0
    path = (WORKFLOW,) if target.functions == (WORKFLOW,) else (WORKFLOW, target.functions[0])
    record.tool("lookup", {"key": sort}, "found")
    record.model_call("a hint", path=path, llm="another-model")
    for turn in range(0 if sort == "silent" else 2):
        call = record.model_call(
            f"{sort} {generation} {turn}",
            prompt=f"{sort}, turn {turn}?",
            path=path if sort != "outside" else ("elsewhere",),
            token_ids=token_ids and sort != "text",
            finish_reason=FinishReason.LENGTH if sort == "cut" and generation == 0 else FinishReason.STOP,
        )
        record.reward("step", turn + generation / 4, call=call)
        if step is not None:
            _candidates(record, sort, step, turn, call)
    if sort == "broken":
        record.failure("the service is down", cause=Cause.INFRASTRUCTURE)
    if sort == "refused":
        record.failure("that is no answer")
    unknown = sort == "broken" or (sort == "unknown" and generation == 0)
    return record.rollout(rewards={REWARD: None if unknown else earned}, output=sort)


def _candidates(record: FakeRecorder, sort: str, step: str, turn: int, call: ModelCall) -> None:
    for index, score in enumerate((0.25, 1.0, 0.75)):
        given = {"flat": 1.0, "unknown": None}.get(sort, score)
        text = call.message["content"] if index == 0 else f"{call.message['content']} or {index}"
        asked = call.messages[0]["content"]
        record.candidate(step, text, given, turn_id=turn, index=index, input=asked, call=call if index == 0 else None)


def sample_records() -> Iterator[Record]:
    """Records of judgments in the most usual form, prompt, chosen and rejected; two people say the same in two of them."""
    judgments = [("a?", "yes", "no"), ("b?", "blue", "red"), ("b?", "blue", "red"), ("c?", "4", "5")]
    for line, (prompt, chosen, rejected) in enumerate(judgments, start=1):
        yield Record(place=f"sample.jsonl:{line}", values={"prompt": prompt, "chosen": chosen, "rejected": rejected})
