"""Rollouts without a model: every event that a workflow may leave, valid, in one line each.

record = FakeRecorder("example-1", generation=0)
call = record.model_call("4", prompt="Which seat?")
record.reward("legal", 1.0, call=call)
rollout = record.rollout(rewards={"outcome": 1.0}, output=4)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nat_finetune.errors import Stage
from nat_finetune.testing.chat import LOGPROB, prompt_ids, text_ids
from nat_finetune.types import (
    CandidateScored,
    Cause,
    Event,
    ExampleId,
    Failure,
    FinishReason,
    ModelCall,
    PolicyRef,
    RewardGiven,
    Rollout,
    SamplingParams,
    ToolCall,
    as_messages,
)

WORKFLOW = "<workflow>"


class FakeRecorder:
    """Writes down one rollout that never ran; times are the numbers of its events, token ids the bytes of its texts."""

    def __init__(
        self, example_id: ExampleId = "example", *, generation: int = 0, llm: str = "policy", version: int = 0
    ) -> None:
        self.rollout_id = f"{example_id}-{generation}"
        self._example_id = example_id
        self._generation = generation
        self._policy = PolicyRef(llm, version)
        self._events: list[Event] = []
        self._failure: Failure | None = None

    def model_call(
        self,
        text: str = "yes",
        *,
        prompt: str | Sequence[Mapping[str, Any]] = "well?",
        path: tuple[str, ...] = (WORKFLOW,),
        llm: str | None = None,
        token_ids: bool = True,
        finish_reason: FinishReason = FinishReason.STOP,
        sampling: SamplingParams | None = None,
    ) -> ModelCall:
        """The model was asked and said `text`, inside the functions of `path`; `llm` in place of the recorder's."""
        messages = as_messages(prompt)
        completion_ids = text_ids(text) if token_ids else None
        call = ModelCall(
            **self._where(path),
            llm=llm or self._policy.llm,
            messages=messages,
            message={"role": "assistant", "content": text},
            finish_reason=finish_reason,
            sampling=sampling or SamplingParams(max_tokens=64),
            policy=self._policy if llm in (None, self._policy.llm) else None,
            prompt_ids=prompt_ids(messages) if token_ids else None,
            completion_ids=completion_ids,
            logprobs=None if completion_ids is None else (LOGPROB,) * len(completion_ids),
        )
        self._events.append(call)
        return call

    def candidate(
        self,
        step_name: str,
        output: str,
        score: float | None,
        *,
        turn_id: str | int = 0,
        input: Any = "well?",
        index: int | None = None,
        call: ModelCall | None = None,
    ) -> CandidateScored:
        """One of several completions of a turn was scored."""
        event = CandidateScored(
            **self._where((WORKFLOW,)),
            step_name=step_name,
            turn_id=turn_id,
            candidate_index=index,
            input=input,
            output=output,
            score=score,
            call_seq=None if call is None else call.seq,
        )
        self._events.append(event)
        return event

    def reward(self, name: str, value: float | None, *, call: ModelCall | None = None) -> RewardGiven:
        """A turn earned something, or the rollout as a whole."""
        event = RewardGiven(**self._where((WORKFLOW,)), name=name, value=value, call_seq=None if call is None else call.seq)
        self._events.append(event)
        return event

    def tool(self, name: str, arguments: Any, result: Any = None, *, error: str | None = None) -> ToolCall:
        """A tool was used."""
        event = ToolCall(**self._where((WORKFLOW,)), name=name, arguments=arguments, result=result, error=error)
        self._events.append(event)
        return event

    def failure(self, message: str = "it failed", *, cause: Cause = Cause.POLICY) -> Failure:
        """The rollout ended here, through the policy or through something else."""
        stage, error_type = Stage.WORKFLOW.value, "PolicyFailure" if cause is Cause.POLICY else "RuntimeError"
        event = Failure(**self._where((WORKFLOW,)), stage=stage, cause=cause, error_type=error_type, message=message)
        self._events.append(event)
        self._failure = event
        return event

    def rollout(self, *, rewards: Mapping[str, float | None] | None = None, output: Any = None) -> Rollout:
        """What was written down so far."""
        return Rollout(
            rollout_id=self.rollout_id,
            example_id=self._example_id,
            generation=self._generation,
            seed=self._generation,
            events=tuple(self._events),
            output=output,
            rewards=dict(rewards or {}),
            failure=self._failure,
            policy_version=self._policy.version,
        )

    def _where(self, path: tuple[str, ...]) -> dict[str, Any]:
        seq = len(self._events)
        return {"rollout_id": self.rollout_id, "seq": seq, "path": path, "start": float(seq), "end": float(seq)}
