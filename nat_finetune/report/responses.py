"""What a step's rollouts answered: how long, how often the same, and whether length alone goes with the reward."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from nat_finetune.data.keys import example_key
from nat_finetune.data.rewards import paid_rewards
from nat_finetune.data.trajectories import target_calls
from nat_finetune.report.rewards import correlation
from nat_finetune.types import ModelCall, Rollout, Target


def response_figures(rollouts: Sequence[Rollout], target: Target) -> dict[str, Any]:
    """Of the trained calls of a step's rollouts, one attempt each.

    `tokens_mean` and `tokens_max`: sampled tokens of a rollout; None where an endpoint does not return them. `repeated`: share
    of rollouts that say word for word what an earlier one of their example said, of those that could. `correlation`: by score,
    its correlation with the number of tokens inside groups (as it is paid, where it is trained); None where either does not
    vary.
    """
    calls = [target_calls(rollout, target) for rollout in rollouts]
    tokens = [_tokens(row) for row in calls]
    known = [count for count in tokens if count is not None]
    groups: dict[str, list[int]] = {}
    for index, rollout in enumerate(rollouts):
        groups.setdefault(example_key(rollout.example_id), []).append(index)
    rewards = [{**rollout.rewards, **paid_rewards(rollout.rewards, target.rewards)} for rollout in rollouts]
    names = sorted({name for row in rewards for name in row})
    members = list(groups.values())
    return {
        "tokens_mean": fmean(known) if known else None,
        "tokens_max": max(known) if known else None,
        "repeated": _repeated([_said(row) for row in calls], members),
        "correlation": {name: correlation([row.get(name) for row in rewards], tokens, members) for name in names},
    }


def _tokens(calls: Sequence[ModelCall]) -> float | None:
    counts = [len(call.completion_ids) if call.completion_ids is not None else None for call in calls]
    known = [count for count in counts if count is not None]
    return float(sum(known)) if known and len(known) == len(counts) else None


def _said(calls: Sequence[ModelCall]) -> str | None:
    return json.dumps([_reply(call.message) for call in calls], default=str) if calls else None


def _reply(message: Mapping[str, Any]) -> list[Any]:
    tools = [call.get("function") for call in message.get("tool_calls") or ()]
    return [message.get("content"), tools]


def _repeated(said: Sequence[str | None], groups: Sequence[Sequence[int]]) -> float | None:
    """Of a group's n answers at most n - 1 can repeat an earlier one; None where no group has two."""
    again = could = 0
    for members in groups:
        answers = [text for index in members if (text := said[index]) is not None]
        again += len(answers) - len(set(answers))
        could += max(0, len(answers) - 1)
    return again / could if could else None
