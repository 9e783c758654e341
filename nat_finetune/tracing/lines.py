"""A rollout as a line of `events.jsonl` holds it: what the line says already, or what is at its default, is left out.

What an event lacks is known: `rollout_id` is the rollout's, `end` is its `start`, the `policy` of a model call is that of
the model call before it, and everything else is at its default in `types`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from nat_finetune.types import Rollout


def to_line(rollout: Rollout) -> dict[str, Any]:
    """The rollout as data to write."""
    line: dict[str, Any] = _adapter().dump_python(rollout, exclude_defaults=True)
    for event, recorded in zip(line["events"], rollout.events, strict=True):
        event["kind"] = recorded.kind
    policy: Any = None
    for event in _events(line):
        if event["rollout_id"] == line["rollout_id"]:
            del event["rollout_id"]
        if event["end"] == event["start"]:
            del event["end"]
        if event.get("kind") == "model_call":
            told, policy = policy, event.get("policy")
            if policy == told:
                event.pop("policy", None)
            else:
                event["policy"] = policy
    return line


def from_line(line: Mapping[str, Any]) -> dict[str, Any]:
    """The data of such a line with what it leaves out put in, defaults aside; a line that leaves nothing out stays as it is."""
    whole = dict(line) | {"events": [dict(event) for event in line["events"]]}
    if whole.get("failure") is not None:
        whole["failure"] = dict(whole["failure"])
    policy: Any = None
    for event in _events(whole):
        event.setdefault("rollout_id", whole["rollout_id"])
        event.setdefault("end", event["start"])
        if event.get("kind") == "model_call":
            policy = event.setdefault("policy", policy)
    return whole


def _events(line: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield from line["events"]
    if line.get("failure") is not None:
        yield line["failure"]


@cache
def _adapter() -> TypeAdapter[Rollout]:
    return TypeAdapter(Rollout)
