"""Example rollouts as a page shows them: each turn with what was new in it, long texts cut."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

LONGEST_TEXT = 8_000
"""Characters of one text on the page; the run folder's events.jsonl holds all of it."""


def shown_turns(turns: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The turns of a rollout; messages that an earlier turn of the same function showed are counted, not repeated."""
    shown: list[dict[str, Any]] = []
    seen: dict[Any, list[str]] = {}
    for turn in turns:
        who = (turn["function"], turn["llm"])
        written = [written_out(message) for message in turn["messages"]]
        keys = [json.dumps(message, sort_keys=True) for message in written]
        before = seen.get(who, [])
        known = len(before) if before and keys[: len(before)] == before else 0
        seen[who] = keys
        reply = {"role": "assistant", "content": turn["reply"], "tool_calls": turn.get("tool_calls")}
        shown.append({**turn, "repeated": known, "messages": written[known:], "reply": written_out(reply)})
    return shown


def written_out(message: Mapping[str, Any]) -> dict[str, str]:
    """Role and text of a message; what is not text, tool calls included, as JSON."""
    content = message.get("content")
    parts = [] if content is None else [content if isinstance(content, str) else as_json(content)]
    parts += [as_json(call) for call in message.get("tool_calls") or ()]
    return {"role": str(message.get("role", "unknown role")), "text": cut("\n".join(parts))}


def cut(text: str) -> str:
    """A text of bearable length."""
    more = len(text) - LONGEST_TEXT
    return text if more <= 0 else f"{text[:LONGEST_TEXT]}\n… {more:,} more characters in events.jsonl"


def as_json(value: Any) -> str:
    """A value as JSON for people."""
    return json.dumps(value, ensure_ascii=False, default=str)
