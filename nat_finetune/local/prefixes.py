"""Does the chat template keep what was said? Asked once, before anything is sampled, of a conversation of three turns.

Training joins the turns of a rollout to one sequence where each prompt extends the one before it and its reply, token for
token. Templates that drop or re-render earlier text (reasoning of earlier turns, tool calls, whitespace) make each turn a
sequence of its own, which costs its whole prompt once more: that is worth knowing before a run, not after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nat_finetune.errors import BackendError
from nat_finetune.local.chat import ChatFormat
from nat_finetune.types import FinishReason, Message

_TOOLS: tuple[Mapping[str, Any], ...] = (
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Looks a word up.",
            "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
        },
    },
)
_ASKED: Message = {"role": "user", "content": "What does the word mean?"}
_CALL = '<tool_call>\n{"name": "look_up", "arguments": {"word": "oak"}}\n</tool_call>'
_PLAIN = "It is a tree."
_FOUND: Message = {"role": "tool", "tool_call_id": "call_0", "name": "look_up", "content": "a tree"}
_AGAIN: Message = {"role": "user", "content": "And the other one?"}


@dataclass(frozen=True, slots=True)
class PrefixProbe:
    """What the probe found; None where the template refuses the conversation."""

    plain: bool | None
    """Whether the next prompt extends a plain reply, token for token."""
    tool_call: bool | None
    """Whether it extends a reply that calls a tool, after the tool's answer."""
    whole: bool | None
    """Whether the third turn's prompt still begins with the first turn's prompt and reply."""

    @property
    def warnings(self) -> list[str]:
        """Sentences for console and report; none where everything is kept."""
        found = []
        if self.plain is False:
            found.append(f"the chat template does not keep a plain reply as it was sampled: {_COST}")
        if self.tool_call is False:
            found.append(f"the chat template does not keep a reply that calls a tool as it was sampled: {_COST}")
        if self.whole is False and self.plain is not False and self.tool_call is not False:
            found.append(f"the chat template drops or rewrites earlier turns once a later one is there: {_COST}")
        return found


_COST = "where a rollout has several such turns, each becomes a token sequence of its own and costs its whole prompt once more"


def probe_prefixes(chat: ChatFormat) -> PrefixProbe:
    """Render three turns, the first of which calls a tool, and see whether each prompt extends the one before and its reply."""
    plain = _kept(chat, _PLAIN, [_AGAIN], tools=None)
    call = _kept(chat, _CALL, [_FOUND], tools=_TOOLS)
    whole = plain if call is None else call
    return PrefixProbe(
        plain=None if plain is None else plain[0],
        tool_call=None if call is None else call[0],
        whole=None if whole is None else whole[1],
    )


def _kept(chat: ChatFormat, reply: str, following: Sequence[Message], *, tools: Any) -> tuple[bool, bool] | None:
    """Whether the second prompt keeps the first turn, and the third both; None where the template refuses such messages.

    A reply may end with any of the model's end-of-turn tokens: the best of them counts.
    """
    try:
        return max(_kept_by(chat, end, reply, following, tools) for end in chat.stop_ids)
    except BackendError:
        return None


def _kept_by(chat: ChatFormat, end: int, reply: str, following: Sequence[Message], tools: Any) -> tuple[bool, bool]:
    first, message = _sampled(chat, end, [_ASKED], reply, tools)
    conversation = [_ASKED, message, *following]
    prompt = chat.render(conversation, tools)
    second, answer = _sampled(chat, end, conversation, _PLAIN, tools)
    third = chat.render([*conversation, answer, _AGAIN], tools)
    return prompt[: len(first)] == first, third[: len(first)] == first and third[: len(second)] == second


def _sampled(chat: ChatFormat, end: int, asked: Sequence[Message], reply: str, tools: Any) -> tuple[tuple[int, ...], Message]:
    """The ids of a prompt and its reply as sampling leaves them, the end-of-turn token included, and the reply as a message."""
    ids = (*chat.encode(reply), end)
    message, _ = chat.parse(ids, FinishReason.STOP, tools=bool(tools))
    return (*chat.render(asked, tools), *ids), message
