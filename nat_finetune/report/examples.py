"""A few rollouts as transcripts, from the first and the last step, for people to look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nat_finetune.runstore import RunStore
from nat_finetune.types import Rollout, Target

PER_STEP = 3


def example_rollouts(store: RunStore, target: Target, *, last_step: int) -> list[dict[str, Any]]:
    """The first rollouts of the first and of the last step that is done."""
    first: list[Rollout] = []
    last: list[Rollout] = []
    for step, rollout in store.rollouts():
        if rollout is None or "~" in rollout.rollout_id:
            continue
        if step == 0 and len(first) < PER_STEP:
            first.append(rollout)
        if step == last_step > 0 and len(last) < PER_STEP:
            last.append(rollout)
    return [*_shown(first, "first step", target), *_shown(last, "last step", target)]


def _shown(rollouts: Sequence[Rollout], when: str, target: Target) -> list[dict[str, Any]]:
    return [
        {
            "rollout_id": rollout.rollout_id,
            "example_id": rollout.example_id,
            "when": when,
            "rewards": dict(rollout.rewards),
            "reasons": dict(rollout.reasons),
            "failure": f"{rollout.failure.stage}: {rollout.failure.message}" if rollout.failure else None,
            "turns": [
                {
                    "function": call.path[-1] if call.path else None,
                    "llm": call.llm,
                    "messages": list(call.messages),
                    "reply": call.message.get("content"),
                    "tool_calls": call.message.get("tool_calls"),
                    "trained": call.llm == target.llm and any(name in call.path for name in target.functions),
                    "finish_reason": call.finish_reason.value,
                }
                for call in rollout.model_calls
            ],
            "output": rollout.output,
        }
        for rollout in rollouts
    ]
