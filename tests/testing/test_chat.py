"""The scripted chat model: answers in order or by a function, calls remembered, token ids on request."""

import asyncio

import pytest

from nat_finetune.interfaces import ChatModel
from nat_finetune.testing import ScriptedChatModel
from nat_finetune.types import FinishReason

USER = [{"role": "user", "content": "hi"}]


def ask(llm, messages=USER, **settings):
    return asyncio.run(llm.chat(messages, **settings))


def test_it_is_a_chat_model_and_says_its_answers_in_order():
    llm = ScriptedChatModel(["a", "b"], name="judge")
    assert isinstance(llm, ChatModel)
    assert (llm.name, ask(llm).text, ask(llm, temperature=0.5, seed=None).text) == ("judge", "a", "b")
    assert [call.settings for call in llm.calls] == [{}, {"temperature": 0.5}]
    assert llm.calls[0].messages == tuple(USER)
    with pytest.raises(AssertionError, match="has 2 answers and was asked for another one"):
        ask(llm)


def test_a_function_answers_and_an_exception_is_raised():
    assert ask(ScriptedChatModel(lambda messages: messages[-1]["content"].upper())).text == "HI"
    with pytest.raises(TimeoutError):
        ask(ScriptedChatModel([TimeoutError("slow")]))


def test_tools_are_called_by_a_message():
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    reply = ask(ScriptedChatModel([{"role": "assistant", "content": None, "tool_calls": calls}]))
    assert (reply.finish_reason, reply.message["tool_calls"], reply.text) == (FinishReason.TOOL_CALLS, calls, "")
    assert reply.completion_ids is None


def test_token_ids_of_a_later_prompt_extend_the_earlier_ones():
    llm = ScriptedChatModel(["yes", "no"], token_ids=True)
    first = ask(llm)
    second = ask(llm, [*USER, first.message, {"role": "user", "content": "sure?"}])
    seen = first.prompt_ids + first.completion_ids
    assert second.prompt_ids[: len(seen)] == seen
    assert len(first.logprobs) == len(first.completion_ids) == len("yes") + 1
