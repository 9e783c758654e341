"""Messages to prompt ids through the model's chat template, and sampled ids back to a message.

Sampled ids are the truth: the text made of them here is for workflows to read, training never encodes it again.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from nat_finetune.errors import BackendError, NatFinetuneError, Stage, boundary
from nat_finetune.types import FinishReason, Message

_CACHED_PROMPTS = 1024
_TOOL_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
_PROBE = "a8f3c1"


class ChatFormat:
    """How one model's conversations are written as tokens."""

    def __init__(self, tokenizer: Any, model: Any) -> None:
        self._tokenizer = tokenizer
        self._prompts: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        self.stop_ids: tuple[int, ...] = end_of_turn_ids(tokenizer, model)
        """Tokens that end the policy's turn, ascending."""
        self._stop_set = frozenset(self.stop_ids)

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None) -> tuple[int, ...]:
        """Prompt ids of a conversation, up to where the assistant's turn begins.

        Raises:
            BackendError: the template refuses the messages or knows no tools.
        """
        key = json.dumps([messages, tools], default=repr)
        known = self._prompts.get(key)
        if known is not None:
            self._prompts.move_to_end(key)
            return known
        ids = tuple(_render(self._tokenizer, [_template_message(m) for m in messages], tools, add_generation_prompt=True))
        self._prompts[key] = ids
        if len(self._prompts) > _CACHED_PROMPTS:
            self._prompts.popitem(last=False)
        return ids

    def render_finished(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Ids of a conversation that ends with the assistant's turn, and with whatever the template writes after it.

        Raises:
            BackendError: the template refuses the messages.
        """
        return tuple(_render(self._tokenizer, [_template_message(m) for m in messages], None, add_generation_prompt=False))

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of a text as a completion: no token is added."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids, special tokens included."""
        text: str = self._tokenizer.decode(list(ids))
        return text

    def parse(
        self, completion_ids: Sequence[int], finish_reason: FinishReason, *, stop: Sequence[str] = (), tools: bool = False
    ) -> tuple[Message, FinishReason]:
        """The assistant's message of a completion.

        The end-of-turn token and whatever follows the first stop string are not part of the text. Where tools were offered,
        `<tool_call>{"name": …, "arguments": {…}}</tool_call>` blocks become `tool_calls` with the arguments as a mapping;
        what is no such JSON stays text.
        """
        ids = list(completion_ids)
        if ids and ids[-1] in self._stop_set:
            ids.pop()
        calls, rest = parse_tool_calls(self._text(ids, stop, special=True)) if tools else ([], "")
        if not calls:
            return {"role": "assistant", "content": self._text(ids, stop, special=False)}, finish_reason
        ended = FinishReason.TOOL_CALLS if finish_reason is FinishReason.STOP else finish_reason
        return {"role": "assistant", "content": rest, "tool_calls": calls}, ended

    def _text(self, ids: Sequence[int], stop: Sequence[str], *, special: bool) -> str:
        """Ids as text, up to the first stop string; `special` tokens shown or not (some tokenizers make <tool_call> one)."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=not special)
        cuts = [at for at in (text.find(end) for end in stop) if at >= 0]
        return text[: min(cuts)] if cuts else text


def parse_tool_calls(text: str) -> tuple[list[dict[str, Any]], str]:
    """Tool calls in a text, in OpenAI's form but with `arguments` as a mapping, and the text without them."""
    calls: list[dict[str, Any]] = []

    def take(match: re.Match[str]) -> str:
        try:
            call = json.loads(match.group(1))
        except (ValueError, RecursionError):  # also a number of thousands of digits, or thousands of brackets
            return match.group(0)
        if (
            not isinstance(call, dict)
            or not isinstance(call.get("name"), str)
            or not isinstance(call.get("arguments", {}), dict)
        ):
            return match.group(0)
        function = {"name": call["name"], "arguments": call.get("arguments", {})}
        calls.append({"id": f"call_{len(calls)}", "type": "function", "function": function})
        return ""

    rest = _TOOL_CALL.sub(take, text)
    return calls, rest.strip() if calls else text


def end_of_turn_ids(tokenizer: Any, model: Any) -> tuple[int, ...]:
    """All tokens that end an assistant's turn: of the generation config, model config, tokenizer and chat template.

    A base model's end-of-text token is often not what its template writes after a turn; both end it.
    """
    found: set[int] = set()
    for ids in (model.generation_config.eos_token_id, model.config.eos_token_id, tokenizer.eos_token_id):
        found.update([ids] if isinstance(ids, int) else ids or ())
    found.update(_template_end(tokenizer))
    if not found:
        raise BackendError(
            "the model has no end-of-turn token: set eos_token_id in its generation_config.json or eos_token in its tokenizer"
        )
    return tuple(sorted(found))


def _template_end(tokenizer: Any) -> list[int]:
    """The special token that the template writes right after an assistant's text, if it writes one."""
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": _PROBE}]
    try:
        with boundary(Stage.MODEL):
            text = tokenizer.apply_chat_template(turns, tokenize=False)
    except NatFinetuneError:
        return []  # a template that can't show an assistant's turn has nothing to say here
    _, _, after = text.rpartition(_PROBE)
    ids = tokenizer.encode(after, add_special_tokens=False)
    return ids[:1] if ids and ids[0] in tokenizer.added_tokens_decoder and after.strip() else []


def _render(tokenizer: Any, messages: Sequence[Message], tools: Any, *, add_generation_prompt: bool) -> Sequence[int]:
    try:
        with boundary(Stage.MODEL):
            ids: Sequence[int] = tokenizer.apply_chat_template(
                messages, tools=tools, add_generation_prompt=add_generation_prompt, tokenize=True, return_dict=False
            )
    except NatFinetuneError as error:
        roles = ", ".join(str(message.get("role")) for message in messages)
        raise BackendError(f"the model's chat template refuses these messages (roles: {roles}): {error}") from error
    return ids


def _template_message(message: Message) -> Message:
    """A message as templates want it: text for None, and tool arguments as a mapping where they came as JSON text."""
    changed = dict(message)
    if changed.get("content") is None:
        changed["content"] = ""
    if changed.get("tool_calls"):
        changed["tool_calls"] = [_template_call(call) for call in changed["tool_calls"]]
    return changed


def _template_call(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}}
