"""A chat model that says what a test wrote down, and remembers what it was asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nat_finetune.interfaces import ChatReply
from nat_finetune.types import FinishReason, Message, PolicyRef, SamplingParams

Answer = str | Message | Exception
"""A text, an assistant's message (one that calls tools, say), or what is raised in place of an answer."""

END = 256
"""The token that ends a message; all others are the bytes of its text."""
LOGPROB = -1.0
"""Nats, of every token: a scripted answer was not drawn from anything."""


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """What one call asked."""

    messages: tuple[Message, ...]
    settings: Mapping[str, Any]
    """The keyword arguments that were not None."""


class ScriptedChatModel:
    """Implements `interfaces.ChatModel` with answers in order, or with a function from the messages to the answer.

        llm = ScriptedChatModel(["4", "5"])
        llm = ScriptedChatModel(lambda messages: messages[-1]["content"].upper())

    With `token_ids`, replies carry what a local model's do: the bytes of the texts as token ids, and a log-probability for
    each. A later prompt extends an earlier one exactly, as a good chat template's does.
    """

    def __init__(
        self,
        answers: Sequence[Answer] | Callable[[Sequence[Message]], Answer],
        *,
        name: str = "policy",
        token_ids: bool = False,
    ) -> None:
        self._answers = answers if callable(answers) else _in_order(list(answers))
        self._name = name
        self._token_ids = token_ids
        self.calls: list[ScriptedCall] = []
        """What was asked so far."""

    @property
    def name(self) -> str:
        """Its name in the config."""
        return self._name

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        stop: Sequence[str] | None = None,
        seed: int | None = None,
    ) -> ChatReply:
        """The next answer.

        Raises:
            AssertionError: the script has come to its end.
        """
        given = {
            "tools": tools, "max_tokens": max_tokens, "temperature": temperature,
            "top_p": top_p, "top_k": top_k, "stop": stop, "seed": seed,
        }  # fmt: skip
        settings = {key: value for key, value in given.items() if value is not None}
        self.calls.append(ScriptedCall(tuple(messages), settings))
        answer = self._answers(messages)
        if isinstance(answer, Exception):
            raise answer
        message = {"role": "assistant", "content": answer} if isinstance(answer, str) else answer
        completion_ids = text_ids(message.get("content") or "") if self._token_ids else None
        return ChatReply(
            message=message,
            finish_reason=FinishReason.TOOL_CALLS if message.get("tool_calls") else FinishReason.STOP,
            sampling=SamplingParams(
                max_tokens=max_tokens or 1024,
                temperature=1.0 if temperature is None else temperature,
                top_p=top_p,
                top_k=top_k,
                stop=tuple(stop or ()),
                seed=seed,
            ),
            policy=PolicyRef(self._name, 0) if self._token_ids else None,
            prompt_ids=prompt_ids(messages) if self._token_ids else None,
            completion_ids=completion_ids,
            logprobs=None if completion_ids is None else (LOGPROB,) * len(completion_ids),
        )


def _in_order(answers: list[Answer]) -> Callable[[Sequence[Message]], Answer]:
    left: Iterator[Answer] = iter(answers)

    def following(messages: Sequence[Message]) -> Answer:
        for answer in left:
            return answer
        raise AssertionError(f"the script has {len(answers)} answers and was asked for another one: {messages!r}")

    return following


def text_ids(text: str) -> tuple[int, ...]:
    """The token ids of a text as a whole turn: its bytes, and the end."""
    return (*text.encode(), END)


def prompt_ids(messages: Sequence[Message]) -> tuple[int, ...]:
    """The token ids of a conversation, up to where the assistant's turn begins."""
    turns = [token for message in messages for token in text_ids(f"{message['role']}\n{message.get('content') or ''}")]
    return (*turns, *b"assistant\n")
