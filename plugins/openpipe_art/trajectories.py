"""Our groups as ART's: conversations whose sampled turns carry token ids and logprobs.

ART renders the messages with the model's chat template and puts the sampled tokens in the places of the sampled turns. So a
rollout is told as histories: calls that continue one another are one history, any other begins a further one
(`additional_histories`). Where the ids of prompts are known, calls continue one another only if their tokens do: a template
that rewrites earlier turns (thoughts that are cut out) would have ART train on a text that nobody has seen.

A message that was not sampled, or not by this call, stays the message that it is: system, user, tool, or an assistant's. 0.4.11
trains every assistant's message, sampled or not, so that a rollout with one that was not is left out there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nat_finetune_plugins.openpipe_art.wire import Dialect

from nat_finetune.data.groups import is_flat
from nat_finetune.data.keys import example_key
from nat_finetune.data.rewards import weighted_sum
from nat_finetune.types import Dropped, DropReason, Group, Message, ModelCall, Target, Trajectory

_THOUGHT = "<think>"
"""ART knows by the bytes of the first token whether a turn begins with a thought that the template has opened already."""
_PARTS = ("text", "image_url")
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


class Unfit(ValueError):
    """Raised for what ART would refuse, or train wrongly."""

    def __init__(self, reason: DropReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Converted:
    """What is sent, and what is not."""

    groups: tuple[dict[str, Any], ...]
    dropped: tuple[Dropped, ...]
    trajectories: int
    tokens: int
    """Sampled tokens of what is sent."""


def convert(groups: Sequence[Group], target: Target, dialect: Dialect, step: int) -> Converted:
    """Groups as ART's, what it can't train on left out with its reason; `step` is the server's, at which they were sampled."""
    sent: list[dict[str, Any]] = []
    dropped: list[Dropped] = []
    kept: list[Trajectory] = []
    for group in groups:
        made = [(t, _trajectory_or_drop(t, target, dialect, step)) for t in group.trajectories]
        bad = [what for _, what in made if isinstance(what, Dropped)]
        good = [(t, what) for t, what in made if not isinstance(what, Dropped)]
        dropped += bad
        why = _useless([t for t, _ in good], target) if bad else None
        if why is not None:
            dropped.append(Dropped("group", why, f"after {len(bad)} of its trajectories were left out", group.example_id))
            continue
        sent.append(_group([what for _, what in good], group, dialect))
        kept += [t for t, _ in good]
    return Converted(tuple(sent), tuple(dropped), len(kept), sum(t.trainable_tokens for t in kept))


def _useless(trajectories: Sequence[Trajectory], target: Target) -> DropReason | None:
    if len(trajectories) < 2:
        return DropReason.TOO_FEW_ROLLOUTS
    return DropReason.FLAT_GROUP if is_flat(trajectories, target) else None


def _group(trajectories: list[dict[str, Any]], group: Group, dialect: Dialect) -> dict[str, Any]:
    body: dict[str, Any] = {"trajectories": trajectories, "exceptions": []}
    if dialect.newest_only:
        return body
    return body | {"metadata": {"scenario_id": example_key(group.example_id)}, "metrics": {}, "logs": []}


def _trajectory_or_drop(trajectory: Trajectory, target: Target, dialect: Dialect, step: int) -> dict[str, Any] | Dropped:
    try:
        return art_trajectory(trajectory, target, dialect, step)
    except Unfit as unfit:
        return Dropped("trajectory", unfit.reason, str(unfit), trajectory.example_id, trajectory.rollout_id)


def art_trajectory(trajectory: Trajectory, target: Target, dialect: Dialect, step: int) -> dict[str, Any]:
    """One trajectory as ART's.

    Raises:
        Unfit: ART would refuse it, or train it wrongly.
    """
    reward = weighted_sum(trajectory.rewards, target.rewards)
    if reward is None:
        raise Unfit(DropReason.UNKNOWN_REWARD, "a reward is unknown")
    if not trajectory.trained:
        raise Unfit(DropReason.TRUNCATED, "ART can't mask a trajectory")
    if not trajectory.calls:
        raise Unfit(DropReason.NO_TRAINED_CALL, "its calls were not kept: use openpipe_art_traj_builder")
    histories = _histories(trajectory.calls)
    if dialect.newest_only:
        for history in histories:
            _only_sampled(history)
    first, *others = [{"messages_and_choices": h.items, "tools": h.tools} for h in histories]
    versions = {} if dialect.newest_only else {"initial_policy_version": step, "final_policy_version": step}
    known = {f"reward/{name}": value for name, value in trajectory.rewards.items() if value is not None}
    return {
        **first,
        "additional_histories": others,
        "reward": reward,
        **versions,
        "metrics": known if len(known) > 1 else {},
        "metadata": {"example_id": example_key(trajectory.example_id), "rollout_id": trajectory.rollout_id},
        "logs": [],
    }


@dataclass(slots=True)
class _History:
    """Messages, and choices in the places of the turns that were sampled here."""

    tools: list[dict[str, Any]] | None
    items: list[dict[str, Any]] = field(default_factory=list)
    normal: list[Any] = field(default_factory=list)
    """What a prompt must begin with to continue it."""
    ids: tuple[int, ...] | None = None
    """Prompt and completion of the last call, where they are known."""


def _histories(calls: Sequence[ModelCall]) -> list[_History]:
    histories: list[_History] = []
    for call in calls:
        tools = [_tool(tool) for tool in call.tools] if call.tools else None
        messages = [_message(message) for message in call.messages]
        normal = [_normal(message) for message in messages]
        history = _continued(histories, call, normal, tools)
        if history is None:
            history = _History(tools)
            histories.append(history)
        history.items += messages[len(history.normal) :]
        said = _message(call.message)
        history.items.append(_choice(call, said))
        history.normal = [*normal, _normal(said)]
        known = call.prompt_ids is not None and call.completion_ids is not None and call.prompt_ids != ()
        history.ids = (*(call.prompt_ids or ()), *(call.completion_ids or ())) if known else None
    return histories


def _continued(
    histories: Sequence[_History], call: ModelCall, normal: list[Any], tools: list[dict[str, Any]] | None
) -> _History | None:
    """The longest history that the call continues."""
    fitting = [h for h in histories if h.tools == tools and normal[: len(h.normal)] == h.normal and _same_tokens(h, call)]
    return max(fitting, key=lambda history: len(history.normal), default=None)


def _same_tokens(history: _History, call: ModelCall) -> bool:
    if history.ids is None or not call.prompt_ids:
        return True
    return call.prompt_ids[: len(history.ids)] == history.ids


def _only_sampled(history: _History) -> None:
    """Refuse an assistant's message before the last choice that was not sampled here."""
    if any(item.get("role") == "assistant" for item in history.items):
        raise Unfit(
            DropReason.NOT_IN_FORMAT,
            "an assistant's message in the prompt is not what was sampled; ART 0.4.11 would train it too (0.5.x does not)",
        )


def _choice(call: ModelCall, message: Mapping[str, Any]) -> dict[str, Any]:
    """A sampled turn, with every token under its id."""
    ids, logprobs = call.completion_ids or (), call.logprobs or ()
    if not ids or len(ids) != len(logprobs):
        raise Unfit(DropReason.NO_TOKEN_IDS, f"call {call.seq} has no token ids")
    if not all(math.isfinite(value) for value in logprobs):
        raise Unfit(DropReason.NO_LOGPROBS, f"call {call.seq} has a logprob that is no number")
    text = str(message.get("content") or "")
    tokens: list[dict[str, Any]] = [
        {"token": f"token_id:{token}", "bytes": None, "logprob": value, "top_logprobs": []}
        for token, value in zip(ids, logprobs, strict=True)
    ]
    if text.startswith(_THOUGHT):
        tokens[0]["bytes"] = list(_THOUGHT.encode())
    said = {"role": "assistant", "content": message.get("content"), "refusal": None, "annotations": None, "audio": None}
    return {
        "finish_reason": call.finish_reason.value,
        "index": 0,
        "logprobs": {"content": tokens, "refusal": None},
        "message": said | {"function_call": None, "tool_calls": message.get("tool_calls")},
    }


def _message(message: Message) -> dict[str, Any]:
    """A message with the keys of its role, as ART's own models take it."""
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        raise Unfit(DropReason.CONTEXT_NOT_MESSAGES, f"a message has the role {role!r}, expected one of {', '.join(_ROLES)}")
    if not (isinstance(content, str | list) or (content is None and role == "assistant")):
        raise Unfit(DropReason.CONTEXT_NOT_MESSAGES, f"a message of the {role} has {type(content).__name__} as its content")
    if isinstance(content, list) and not all(isinstance(part, Mapping) and part.get("type") in _PARTS for part in content):
        raise Unfit(DropReason.CONTEXT_NOT_MESSAGES, f"a part of a message is none of {', '.join(_PARTS)}")
    made: dict[str, Any] = {"role": role, "content": content}
    if role == "tool":
        if not isinstance(message.get("tool_call_id"), str):
            raise Unfit(DropReason.CONTEXT_NOT_MESSAGES, "a tool's message has no tool_call_id")
        made["tool_call_id"] = message["tool_call_id"]
    elif isinstance(message.get("name"), str):
        made["name"] = message["name"]
    if role == "assistant" and message.get("tool_calls"):
        made["tool_calls"] = [_tool_call(call) for call in message["tool_calls"]]
    return made


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise Unfit(DropReason.CONTEXT_NOT_MESSAGES, "a tool is not {type: function, function: {name: ...}}")
    return dict(tool)


def _tool_call(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise Unfit(DropReason.CONTEXT_NOT_MESSAGES, "a tool call names no function")
    arguments = function.get("arguments", {})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {
        "id": str(call.get("id") or function["name"]),
        "type": "function",
        "function": {"name": function["name"], "arguments": text},
    }


def _normal(message: Mapping[str, Any]) -> dict[str, Any]:
    """What is equal where messages are: an absent content is an empty one."""
    return {**message, "content": message.get("content") or ""}
