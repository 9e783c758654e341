"""The chat-completions protocol as data: what is asked of an endpoint, and what its answer says. No IO."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from nat_finetune.errors import BackendError
from nat_finetune.interfaces import ChatReply
from nat_finetune.remote.secrets import snippet
from nat_finetune.types import FinishReason, Message, SamplingParams

_REASONS = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "tool_calls": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
}
_NAMED_BY_ID = re.compile(r"token_id:(\d+)")
"""How vLLM names tokens under `--return-tokens-as-token-ids`."""
_PENALTIES = ("frequency_penalty", "presence_penalty", "repetition_penalty")


class _TokenLogprob(BaseModel):
    token: str = ""
    logprob: float


class _Logprobs(BaseModel):
    content: list[_TokenLogprob] | None = None


class _Message(BaseModel, extra="allow"):
    role: str = "assistant"
    content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class _Completion(BaseModel):
    choices: list[_Choice]
    model: str | None = None
    prompt_token_ids: list[int] | None = None
    """vLLM puts them beside `choices`, others into the choice."""


def request_body(
    model: str, messages: Sequence[Message], sampling: SamplingParams, *, sent: frozenset[str], limit_key: str = "max_tokens"
) -> dict[str, Any]:
    """The body of a request: `sampling`, of which only the settings named in `sent` are written out.

    Args:
        model: name under which the endpoint serves it.
        messages: as they are; tool arguments become JSON text, as the protocol has it.
        sampling: how to draw.
        sent: names of the settings that were asked for, by the config or the call; the endpoint's defaults hold for the others.
        limit_key: what the endpoint calls the limit of tokens.
    """
    body: dict[str, Any] = {"model": model, "messages": [_wire_message(message) for message in messages]}
    body[limit_key] = sampling.max_tokens
    for name in ("temperature", "top_p", "top_k", "seed", *_PENALTIES):
        value = getattr(sampling, name)
        if name in sent and value is not None:
            body[name] = value
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    return body


def _wire_message(message: Message) -> dict[str, Any]:
    wired = dict(message)
    if wired.get("tool_calls"):
        wired["tool_calls"] = [_wire_call(call) for call in wired["tool_calls"]]
    return wired


def _wire_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping) or isinstance(function.get("arguments"), str):
        return dict(call)
    return {**call, "function": {**function, "arguments": json.dumps(function.get("arguments", {}), ensure_ascii=False)}}


def read_reply(
    text: str,
    sampling: SamplingParams,
    *,
    where: str,
    needs_ids: bool,
    as_sampled: bool = False,
    secret: str | None = None,
) -> ChatReply:
    """What an endpoint answered; `secret` is never shown.

    Tool calls, roles and the finish reason stay as they came. Logprobs are kept where temperature is 1: at another one, what
    endpoints return is not the logprob of the distribution that was sampled, unless they are known to (`as_sampled`).

    Raises:
        BackendError: no JSON, not a completion, a finish reason that is none of the protocol's, or ids and logprobs that don't
            fit together.
    """
    completion = _parse(text, where, secret)
    if not completion.choices:
        raise BackendError(f"{where} answered without a choice: {snippet(text, [secret])}")
    choice = completion.choices[0]
    reason = _REASONS.get(choice.finish_reason or "")
    if reason is None:
        raise BackendError(
            f"{where} ended the completion with finish_reason {choice.finish_reason!r}, expected one of {', '.join(_REASONS)}: "
            "the reply is not complete"
        )
    content = choice.logprobs.content if choice.logprobs is not None else None
    ids = tuple(choice.token_ids) if choice.token_ids is not None else _ids_by_name(content or [])
    prompt = choice.prompt_token_ids if choice.prompt_token_ids is not None else completion.prompt_token_ids
    sampled = as_sampled or sampling.temperature == 1.0
    logprobs = tuple(token.logprob for token in content) if content is not None and sampled else None
    if needs_ids and (ids is None or prompt is None):
        raise BackendError(
            f"{where} returned no token ids although `return_token_ids` is set: it needs a server that knows this key (vLLM)"
        )
    if ids is not None and logprobs is not None and len(ids) != len(logprobs):
        raise BackendError(f"{where} returned {len(logprobs)} logprobs for {len(ids)} token ids: one for each was expected")
    return ChatReply(
        message={"content": None, **choice.message.model_dump(exclude_none=True)},
        finish_reason=reason,
        sampling=sampling,
        prompt_ids=tuple(prompt) if prompt is not None else None,
        completion_ids=ids,
        logprobs=logprobs,
    )


def _ids_by_name(tokens: Sequence[_TokenLogprob]) -> tuple[int, ...] | None:
    """The sampled ids, where every token is named by its id; None where they are named by their texts."""
    found = [_NAMED_BY_ID.fullmatch(token.token) for token in tokens]
    return tuple(int(match[1]) for match in found if match) if found and all(found) else None


def served_model(text: str, *, where: str, secret: str | None = None) -> str | None:
    """The name under which the endpoint says that it answered, None where it says nothing.

    Raises:
        BackendError: the text is no completion.
    """
    return _parse(text, where, secret).model


def _parse(text: str, where: str, secret: str | None) -> _Completion:
    try:
        return _Completion.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BackendError(
            f"{where} answered with something that is no chat completion ({place + ': ' if place else ''}{first['msg']}): "
            f"{snippet(text, [secret])}"
        ) from None
