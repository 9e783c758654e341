"""What a workflow may say beside its calls: a tool was used, a candidate was scored, a turn earned a reward.

    reply = await llm.chat(messages)
    record.candidate("move_candidate", turn_id="turn-1", input=messages, output=reply.text, score=0.5, call=reply)
    record.reward("legal", 1.0, call=reply)
    with record.tool("lookup", {"policy": "A-1"}) as tool:
        tool.result = lookup("A-1")

Outside of a rollout all of these do nothing, so that a workflow also runs by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from nat_finetune.errors import Stage
from nat_finetune.interfaces import ChatReply
from nat_finetune.tracing.context import current_path, current_recorder
from nat_finetune.tracing.recorder import Recorder, plain, writable
from nat_finetune.types import CandidateScored, Cause, Failure, RewardGiven, ToolCall


def candidate(
    step_name: str,
    *,
    turn_id: str | int,
    input: Any,
    output: Any,
    score: float | None,
    candidate_index: int | None = None,
    turn_index: int | None = None,
    selected: bool | None = None,
    call: ChatReply | int | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Record one scored candidate of a turn.

    `step_name` is what `dpo_traj_builder.ttc_step_name` names; `input` is the context (a text or messages), `output` the
    completion's text, `score` higher for better and None if unknown. `call` links the reply that it came from (or that reply's
    `call_seq`), and with it the sampled token ids.
    """
    recorder = current_recorder()
    if recorder is None:
        return
    now = recorder.clock()
    recorder.add(
        CandidateScored(
            rollout_id=recorder.rollout_id,
            seq=recorder.reserve(),
            path=current_path(),
            start=now,
            end=now,
            step_name=step_name,
            turn_id=turn_id,
            candidate_index=candidate_index,
            input=plain(input),
            output=plain(output),
            score=score,
            turn_index=turn_index,
            selected=selected,
            call_seq=_seq(call),
            metadata=plain(metadata or {}),
        )
    )


def reward(name: str, value: float | None, *, call: ChatReply | int | None = None) -> None:
    """Record a step reward: what the turn of `call` earned, or the whole rollout where `call` is None."""
    recorder = current_recorder()
    if recorder is None:
        return
    now = recorder.clock()
    recorder.add(
        RewardGiven(
            rollout_id=recorder.rollout_id,
            seq=recorder.reserve(),
            path=current_path(),
            start=now,
            end=now,
            name=name,
            value=value,
            call_seq=_seq(call),
        )
    )


def _seq(call: ChatReply | int | None) -> int | None:
    return call.call_seq if isinstance(call, ChatReply) else call


@dataclass(slots=True)
class ToolUse:
    """A tool call under way; set `result`."""

    result: Any = None


@contextmanager
def tool(name: str, arguments: Any) -> Iterator[ToolUse]:
    """Record a tool call; an exception inside is recorded as its error and goes on."""
    use = ToolUse()
    recorder = current_recorder()
    if recorder is None:
        yield use
        return
    seq, start, error = recorder.reserve(), recorder.clock(), None
    try:
        yield use
    except Exception as raised:
        error = writable(f"{type(raised).__name__}: {raised}")
        raise
    finally:
        recorder.add(
            ToolCall(
                rollout_id=recorder.rollout_id,
                seq=seq,
                path=current_path(),
                start=start,
                end=recorder.clock(),
                name=name,
                arguments=plain(arguments),
                result=plain(use.result),
                error=error,
            )
        )


def failure(
    recorder: Recorder, *, stage: Stage, cause: Cause, error_type: str, message: str, start: float | None = None
) -> Failure:
    """Record a failure and return the event."""
    now = recorder.clock()
    event = Failure(
        rollout_id=recorder.rollout_id,
        seq=recorder.reserve(),
        path=current_path(),
        start=now if start is None else start,
        end=now,
        stage=stage.value,
        cause=cause,
        error_type=error_type,
        message=writable(message),
    )
    recorder.add(event)
    return event
