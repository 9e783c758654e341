"""A line of `events.jsonl` leaves out what it need not say and loads back equal; so does one that left nothing out."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from pydantic import TypeAdapter
from pydantic_core import from_json, to_json

from nat_finetune.tracing.lines import from_line, to_line
from nat_finetune.types import (
    CandidateScored,
    Cause,
    Failure,
    FinishReason,
    FunctionCall,
    ModelCall,
    PolicyRef,
    RewardGiven,
    Rollout,
    SamplingParams,
    ToolCall,
)

AT = {"rollout_id": "r", "path": ("<workflow>",), "start": 1.5, "end": 2.5}


def call(seq: int, **changes: object) -> ModelCall:
    made = ModelCall(
        **AT,
        seq=seq,
        llm="policy",
        messages=({"role": "user", "content": None},),
        message={"role": "assistant", "content": "x", "tool_calls": None},
        finish_reason=FinishReason.STOP,
        sampling=SamplingParams(max_tokens=3),
        policy=PolicyRef("policy", 4, digest="abc"),
    )
    return replace(made, **changes)


EVENTS = {
    "a call": call(0),
    "a call with everything": call(
        0,
        sampling=SamplingParams(3, 0.7, 0.9, 5, 0.1, 0.2, 1.1, ("\n",), 2**62),
        prompt_ids=(1, 2),
        completion_ids=(0,),
        logprobs=(-0.1234567890123456,),
        tools=({"type": "function"},),
    ),
    "a call of no policy": call(0, policy=None),
    "a tool": ToolCall(**AT, seq=0, name="t", arguments=None, result=0, error=""),
    "a function": FunctionCall(**AT, seq=0, name="f", input={"a": None}, output=False),
    "a candidate": CandidateScored(**AT, seq=0, step_name="s", turn_id=None, score=float("inf"), selected=False, call_seq=0),
    "a reward": RewardGiven(**AT, seq=0, name="step", value=None, call_seq=None),
    "a failure": Failure(**AT, seq=0, stage="tool", cause=Cause.POLICY, error_type="E", message=""),
}


def loaded(data: object) -> Rollout:
    """What a reader gets of data that was written and read as JSON."""
    line = from_json(to_json(data, inf_nan_mode="constants"), allow_inf_nan=True)
    return TypeAdapter(Rollout).validate_python(from_line(line))


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS.keys())
@pytest.mark.parametrize("changes", [{}, {"end": 1.5}, {"rollout_id": "r~1"}, {"path": ()}], ids=str)
def test_every_kind_of_event_loads_back_equal(event, changes):
    made = Rollout("r", "007", 0, 5, (replace(event, **changes),))
    assert loaded(to_line(made)) == made
    assert loaded(asdict(made)) == made  # as earlier versions wrote it


def test_of_the_policy_only_what_changes_is_written():
    """None, A, A, another model's call without one, B: five calls, and each keeps its own."""
    a, b = PolicyRef("policy", 1), PolicyRef("policy", 2)
    calls = tuple(call(seq, policy=policy) for seq, policy in enumerate((None, a, a, None, b)))
    made = Rollout("r", 1, 0, 5, calls)
    line = to_line(made)
    assert ["policy" in event for event in line["events"]] == [False, True, False, True, True]
    assert loaded(line) == made


def test_what_the_line_says_already_is_not_repeated():
    failure = EVENTS["a failure"]
    made = Rollout("r", 7, 0, 5, (EVENTS["a tool"], failure), failure=failure)
    line = to_line(made)
    assert set(line) == {"rollout_id", "example_id", "generation", "seed", "events", "failure"}
    assert line["events"][0] == {
        "kind": "tool_call", "seq": 0, "path": ("<workflow>",), "start": 1.5, "end": 2.5, "name": "t", "arguments": None,
        "result": 0, "error": "",
    }  # fmt: skip
    assert "rollout_id" not in line["failure"]
    assert loaded(line) == made


def test_a_whole_rollout_with_its_outcome():
    made = Rollout(
        "r", "1", 3, 9, tuple(EVENTS.values()), output=0, rewards={"a": None, "b": 0.0}, reasons={"b": "why"},
        policy_version=0, attempts=2,
    )  # fmt: skip
    assert loaded(to_line(made)) == made
