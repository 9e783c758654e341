"""What an `art run` server takes, key by key and stricter than ART: a key that it would ignore is refused."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

Problems = list[str]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_MODEL = _names(
    "name project config trainable inference_api_key inference_base_url inference_model_name base_model _internal_config"
)
_TRAJECTORY = _names("messages_and_choices tools additional_histories reward metrics metadata logs")
_GROUP = frozenset({"trajectories", "exceptions"})
_SINCE_0_5 = {
    "model": _names("entity id run_id base_path report_metrics"),
    "trajectory": frozenset({"initial_policy_version", "final_policy_version"}),
    "group": frozenset({"metadata", "metrics", "logs"}),
}
_CHOICE = frozenset({"finish_reason", "index", "logprobs", "message"})
_ROLES = {
    "system": frozenset({"role", "content", "name"}),
    "developer": frozenset({"role", "content", "name"}),
    "user": frozenset({"role", "content", "name"}),
    "assistant": frozenset({"role", "content", "name", "tool_calls"}),
    "tool": frozenset({"role", "content", "tool_call_id"}),
    "function": frozenset({"role", "content", "name"}),
}


def keys(generation: str, kind: str, common: frozenset[str]) -> frozenset[str]:
    """Keys of a model, group or trajectory in a generation."""
    return common if generation == "0.4" else common | _SINCE_0_5[kind]


def model_problems(body: Any, generation: str) -> Problems:
    """What is wrong with a model."""
    found = _unlike(body, keys(generation, "model", _MODEL), "model")
    if not found and not (isinstance(body["name"], str) and isinstance(body["base_model"], str) and body["trainable"] is True):
        found.append("model: name and base_model are texts, trainable is true")
    return found


def train_problems(body: Any, generation: str) -> Problems:
    """What is wrong with a train request."""
    found = _unlike(body, frozenset({"model", "trajectory_groups", "config", "dev_config", "verbose"}), "body")
    if found:
        return found
    kl = "beta" if generation == "0.4" else "kl_penalty_coef"
    found = model_problems(body["model"], generation) + _unlike(body["config"], frozenset({"learning_rate", kl}), "config")
    allowed = frozenset[str]() if generation == "0.4" else frozenset({kl})
    found += [f"dev_config: unknown key {key}" for key in body["dev_config"] if key not in allowed]
    for number, group in enumerate(body["trajectory_groups"]):
        found += _group_problems(group, generation, f"trajectory_groups.{number}")
    return found


def _group_problems(group: Any, generation: str, where: str) -> Problems:
    found = _unlike(group, keys(generation, "group", _GROUP), where)
    if found:
        return found
    if len(group["trajectories"]) < 2:
        found.append(f"{where}: a group of {len(group['trajectories'])} has nothing to compare")
    for number, trajectory in enumerate(group["trajectories"]):
        found += _trajectory_problems(trajectory, generation, f"{where}.trajectories.{number}")
    return found


def _trajectory_problems(trajectory: Any, generation: str, where: str) -> Problems:
    found = _unlike(trajectory, keys(generation, "trajectory", _TRAJECTORY), where)
    if found:
        return found
    if not isinstance(trajectory["reward"], int | float) or not math.isfinite(trajectory["reward"]):
        found.append(f"{where}.reward: {trajectory['reward']!r}")
    for history in [trajectory, *trajectory["additional_histories"]]:
        items = history["messages_and_choices"]
        if not any("logprobs" in item for item in items):
            found.append(f"{where}: no sampled turn")
        for number, item in enumerate(items):
            found += _item_problems(item, f"{where}.messages_and_choices.{number}")
        if generation == "0.4" and any(item.get("role") == "assistant" for item in items):
            found.append(f"{where}: 0.4.11 would train an assistant's message that was not sampled")
    return found


def _item_problems(item: Any, where: str) -> Problems:
    if not isinstance(item, Mapping):
        return [f"{where}: {type(item).__name__}"]
    if "logprobs" in item:
        return _choice_problems(item, where)
    role = item.get("role")
    if role not in _ROLES:
        return [f"{where}.role: {role!r}"]
    found = [f"{where}: unknown key {key} of the {role}" for key in item.keys() - _ROLES[str(role)]]
    if role == "tool" and not isinstance(item.get("tool_call_id"), str):
        found.append(f"{where}: a tool's message without tool_call_id")
    return found


def _choice_problems(choice: Mapping[str, Any], where: str) -> Problems:
    found = _unlike(choice, _CHOICE, where)
    if found:
        return found
    tokens = (choice["logprobs"] or {}).get("content") or []
    named = [str(token.get("token")) for token in tokens]
    if not tokens or not all(name.startswith("token_id:") and name[9:].isdigit() for name in named):
        found.append(f"{where}.logprobs: tokens are named token_id:<int>, found {named[:3]}")
    if choice["message"].get("role") != "assistant" or choice["finish_reason"] not in ("stop", "length", "tool_calls"):
        found.append(f"{where}: an assistant's message that ended by stop, length or tool_calls")
    return found


def _unlike(body: Any, expected: Iterable[str], where: str) -> Problems:
    if not isinstance(body, Mapping):
        return [f"{where}: expected an object, found {type(body).__name__}"]
    wanted = set(expected)
    return [f"{where}: unknown key {key}" for key in sorted(body.keys() - wanted)] + [
        f"{where}: {key} is missing" for key in sorted(wanted - body.keys())
    ]
