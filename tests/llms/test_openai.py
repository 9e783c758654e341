"""`_type: openai` against a real server: what it asks, what it records, what it refuses."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from pydantic import ValidationError

from nat_finetune.errors import BackendError, ConfigError
from nat_finetune.interfaces import ChatModel
from nat_finetune.llms.openai import OpenAILLMConfig, openai_llm
from nat_finetune.remote.interfaces import ServedChatModel
from nat_finetune.types import FinishReason, PolicyRef
from tests.fixtures.endpoint import Answer, endpoint_server

HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at":  "5"}'}}


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


@dataclass
class Builder:
    """All that the factory asks of a builder."""

    entry_name: str = "judge"
    seed: int = 0


def completion(content="hi", *, reason="stop", message=None, beside=None, **choice):
    message = {"role": "assistant", "content": content, "refusal": None, **(message or {})}
    found = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None, **choice}
    return {"id": "c", "object": "chat.completion", "model": "m", "choices": [found], "usage": {}, **(beside or {})}


def config(**keys):
    return OpenAILLMConfig.model_validate({"model_name": "m", **keys})


@asynccontextmanager
async def chatting(body=None, *, builder=None, raw=None, **keys):
    """A model and the server behind it."""
    answer = Answer(raw if raw is not None else completion() if body is None else body)
    async with endpoint_server(answer) as server:
        made = openai_llm(config(base_url=server.url, **keys), builder or Builder())
        model = await anext(made)
        try:
            yield model, server
        finally:
            await made.aclose()


# -------------------------------------------------------------------------------------------------------------- the request


async def test_only_what_was_set_is_sent():
    async with chatting() as (model, server):
        reply = await model.chat(HELLO)
    assert server.asked[0].path == "/v1/chat/completions"
    assert server.asked[0].body == {"model": "m", "messages": HELLO, "max_tokens": 1024}
    assert (reply.text, reply.message) == ("hi", {"role": "assistant", "content": "hi"})
    assert (reply.finish_reason, reply.policy) == (FinishReason.STOP, None)
    assert (reply.sampling.temperature, reply.sampling.max_tokens, reply.sampling.seed) == (1.0, 1024, None)
    assert (reply.prompt_ids, reply.completion_ids, reply.logprobs) == (None, None, None)
    assert isinstance(model, ChatModel)


async def test_everything_that_is_set_is_sent():
    keys = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 7, "seed": 3, "extra_body": {"top_k": 5, "guided_choice": ["a"]}}
    async with chatting(**keys) as (model, server):
        reply = await model.chat(HELLO, tools=[TOOL], stop=["\n"])
    asked = server.asked[0].body
    assert asked == {
        "model": "m", "messages": HELLO, "temperature": 0.5, "top_p": 0.9, "max_tokens": 7, "seed": 3, "top_k": 5,
        "guided_choice": ["a"], "tools": [TOOL], "stop": ["\n"],
    }  # fmt: skip
    assert reply.sampling.truncating == ("top_p", "top_k")


async def test_a_call_overrules_the_config():
    async with chatting(temperature=0.5, max_tokens=7, extra_body={"top_k": 5}) as (model, server):
        reply = await model.chat(HELLO, temperature=0.0, max_tokens=1, top_k=2, top_p=0.5, seed=9)
    asked = server.asked[0].body
    assert {key: asked[key] for key in ("temperature", "max_tokens", "top_k", "top_p", "seed")} == {
        "temperature": 0.0, "max_tokens": 1, "top_k": 2, "top_p": 0.5, "seed": 9,
    }  # fmt: skip
    assert (reply.sampling.temperature, reply.sampling.max_tokens, reply.sampling.top_k) == (0.0, 1, 2)


async def test_the_limit_under_its_newer_name():
    async with chatting(extra_body={"max_completion_tokens": 50}) as (model, server):
        await model.chat(HELLO)
        reply = await model.chat(HELLO, max_tokens=9)
    first, second = (asked.body for asked in server.asked)
    assert (first["max_completion_tokens"], second["max_completion_tokens"]) == (50, 9)
    assert "max_tokens" not in first | second
    assert reply.sampling.max_tokens == 9


async def test_conversations_go_out_as_they_are_with_arguments_as_text():
    local_call = {"id": "call_0", "type": "function", "function": {"name": "look", "arguments": {"at": "é"}}}
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "u"}]},
        {"role": "assistant", "content": None, "tool_calls": [local_call, CALL]},
        {"role": "tool", "tool_call_id": "call_0", "name": "look", "content": "nothing"},
        {"role": "assistant", "content": "a"},
    ]
    async with chatting() as (model, server):
        await model.chat(messages)
    sent = server.asked[0].body["messages"]
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "tool", "assistant"]
    assert sent[2]["tool_calls"][0]["function"]["arguments"] == '{"at": "é"}'
    assert sent[2]["tool_calls"][1] == CALL
    assert [sent[i] for i in (0, 1, 3, 4)] == [messages[i] for i in (0, 1, 3, 4)]
    assert local_call["function"]["arguments"] == {"at": "é"}, "the workflow's own message was changed"


async def test_a_seed_for_each_call_comes_from_both_seeds():
    bodies = []
    for seed in (None, 3, 4):
        async with chatting(**({} if seed is None else {"seed": seed})) as (model, server):
            await model.chat(HELLO, seed=2**62 + 1)
            await model.chat(HELLO, seed=2**62 + 2)
        bodies += [asked.body["seed"] for asked in server.asked]
    assert len(set(bodies)) == 6
    assert all(0 <= seed < 2**31 for seed in bodies)


# ---------------------------------------------------------------------------------------------------------------- the reply


async def test_tool_calls_are_kept_with_a_null_text():
    body = completion(None, reason="tool_calls", message={"tool_calls": [CALL], "reasoning_content": "hm"})
    async with chatting(body) as (model, _):
        reply = await model.chat(HELLO, tools=[TOOL])
    assert reply.message == {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "hm"}
    assert (reply.text, reply.finish_reason) == ("", FinishReason.TOOL_CALLS)


async def test_a_cut_reply_says_so():
    async with chatting(completion("hel", reason="length")) as (model, _):
        assert (await model.chat(HELLO)).finish_reason is FinishReason.LENGTH


LOGPROBS = {"content": [{"token": "h", "logprob": -0.5, "top_logprobs": []}, {"token": "i", "logprob": -1.5}]}


async def test_logprobs():
    async with chatting(completion(logprobs=LOGPROBS), logprobs=True) as (model, server):
        assert (await model.chat(HELLO)).logprobs == (-0.5, -1.5)
        assert (await model.chat(HELLO, temperature=0.7)).logprobs is None, "not those of the sampled distribution"
    assert server.asked[0].body["logprobs"] is True


@pytest.mark.parametrize("inside", [False, True])
async def test_token_ids(inside):
    prompt = {"prompt_token_ids": [1, 2, 3]}
    body = completion(logprobs=LOGPROBS, token_ids=[7, 8], **(prompt if inside else {}), beside={} if inside else prompt)
    async with chatting(body, return_token_ids=True) as (model, server):
        reply = await model.chat(HELLO)
    assert (reply.prompt_ids, reply.completion_ids, reply.logprobs) == ((1, 2, 3), (7, 8), (-0.5, -1.5))
    asked = server.asked[0].body
    assert (asked["return_token_ids"], asked["logprobs"]) == (True, True)
    whole = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    assert {key: asked[key] for key in whole} == whole, "else the model's generation_config.json would decide"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (completion(token_ids=None), "no token ids"),
        (completion(token_ids=[7, 8]), "no token ids"),
        (completion(logprobs=LOGPROBS, token_ids=[7], prompt_token_ids=[1]), "2 logprobs for 1 token ids"),
    ],
)
async def test_ids_that_are_missing_or_do_not_fit(body, says):
    async with chatting(body, return_token_ids=True) as (model, _):
        with pytest.raises(BackendError, match=says):
            await model.chat(HELLO)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ("<html>not found", "no chat completion"),
        ("", "no chat completion"),
        ('{"choices": [', "no chat completion"),
        ('{"error": "soft failure sk-secret-key"}', r"choices: Field required\): .*soft failure \[key\]"),
        ('{"choices": []}', "without a choice"),
        ('{"choices": [{"finish_reason": "stop"}]}', "choices.0.message: Field required"),
        ('{"choices": [{"finish_reason": "stop", "message": {"content": 5}}]}', "choices.0.message.content"),
        ('{"choices": [{"finish_reason": "content_filter", "message": {}}]}', "finish_reason 'content_filter'"),
        ('{"choices": [{"message": {"content": "hi"}}]}', "finish_reason None"),
    ],
)
async def test_what_is_no_completion(raw, says):
    async with chatting(raw=raw, api_key="sk-secret-key") as (model, server):
        with pytest.raises(BackendError, match=says) as caught:
            await model.chat(HELLO)
    assert str(caught.value).startswith(f"llms.judge: {server.url}/chat/completions")
    assert "sk-secret-key" not in str(caught.value)


# --------------------------------------------------------------------------------------------------------------- the config


def test_the_model_has_two_names():
    assert OpenAILLMConfig.model_validate({"model": "m"}).model_name == "m"
    with pytest.raises(ValidationError, match="model"):
        OpenAILLMConfig.model_validate({})


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"api_type": "responses"}, "use chat_completion"),
        ({"api_type": "completion"}, "expected chat_completion, found 'completion'"),
        ({"top_k": 5}, "top_k"),
        ({"temperature": -1}, "temperature"),
        ({"base_url": "localhost:8000"}, "base_url"),
        ({"extra_body": {"temperature": 1}}, "extra_body.temperature: temperature is a key of its own"),
        ({"extra_body": {"messages": []}}, "messages is set by each call"),
        ({"extra_body": {"n": 2}}, "n is set by each call"),
        ({"extra_body": {"max_completion_tokens": "many"}}, "whole number"),
        ({"extra_body": {"max_completion_tokens": 5}, "max_tokens": 5}, "either"),
        ({"logprobs": True, "temperature": 0.4}, "logprobs at temperature 0.4 would not be recorded"),
        ({"api_key": "sk-\u2028smuggled"}, "can't stand in an HTTP header"),
        ({"api_key": "sk-two\r\nX-Evil: 1"}, "can't stand in an HTTP header"),
    ],
)
def test_refused_with_a_reason(keys, says):
    with pytest.raises(ValidationError, match=says) as caught:
        config(**keys)
    assert "smuggled" not in caught.value.errors()[0]["msg"]


def test_nothing_of_the_key_is_shown():
    assert "sk-hidden" not in repr(config(api_key="sk-hidden"))


def test_what_token_level_training_may_use():
    assert not config().records_token_ids()
    assert config(return_token_ids=True).records_token_ids()
    assert config(return_token_ids=True, temperature=1.0, top_p=1.0).truncating_sampling() == ()
    reshaping = {"top_k": 20, "min_p": 0.0, "repetition_penalty": 1.1, "presence_penalty": None}
    found = config(temperature=0.7, top_p=0.9, extra_body=reshaping).truncating_sampling()
    assert found == ("temperature", "top_p", "extra_body.top_k", "extra_body.repetition_penalty")
    assert (config().samples_by_seed(), config(seed=1).samples_by_seed()) == (False, True)


async def test_the_key_comes_from_the_config_else_from_the_environment(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "from-environment ")
    for given, used in (("from-config", "from-config"), (None, "from-environment"), ("", "from-environment")):
        async with chatting(api_key=given) as (model, server):
            await model.chat(HELLO)
        assert server.asked[0].headers["authorization"] == f"Bearer {used}"


async def test_the_url_comes_from_the_environment(monkeypatch):
    async with endpoint_server(Answer(completion())) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/")
        made = openai_llm(config(), Builder())
        await (await anext(made)).chat(HELLO)
        await made.aclose()
    assert server.asked[0].path == "/v1/chat/completions"


async def test_openai_itself_needs_a_key():
    with pytest.raises(ConfigError, match=r"llms\.judge has no api_key, and OPENAI_API_KEY is not set"):
        await anext(openai_llm(config(), Builder()))


@pytest.mark.parametrize(("keys", "attempts"), [({"do_auto_retry": False}, 1), ({"retry_on_status_codes": []}, 1)])
async def test_retries_are_the_configs(keys, attempts):
    async with endpoint_server(Answer("no", "503 Service Unavailable")) as server:
        made = openai_llm(config(base_url=server.url, **keys), Builder())
        with pytest.raises(BackendError, match="503"):
            await (await anext(made)).chat(HELLO)
        await made.aclose()
    assert len(server.asked) == attempts


# --------------------------------------------------------------------------------------------------- a model that is trained


async def test_from_the_training_on_calls_go_to_the_trained_model_and_are_its_own():
    async with chatting(api_key="sk-first-key") as (model, server), endpoint_server(Answer(completion())) as elsewhere:
        assert isinstance(model, ServedChatModel)
        assert (await model.chat(HELLO)).policy is None
        first, second = PolicyRef("judge", 1), PolicyRef("judge", 2)
        model.served_at(base_url=None, model="m@1", api_key=None, policy=first)
        assert (await model.chat(HELLO)).policy == first
        model.served_at(base_url=f"{elsewhere.url}/", model="m@2", api_key=None, policy=second)
        assert (await model.chat(HELLO)).policy == second
        model.served_at(base_url=None, model="m@2", api_key="sk-second-key", policy=second)
        await model.chat(HELLO)
    assert [asked.body["model"] for asked in server.asked] == ["m", "m@1"]
    assert [asked.headers["authorization"] for asked in server.asked] == ["Bearer sk-first-key"] * 2
    assert [asked.path for asked in elsewhere.asked] == ["/v1/chat/completions"] * 2
    assert "authorization" not in elsewhere.asked[0].headers  # the key was given for another host
    assert elsewhere.asked[1].headers["authorization"] == "Bearer sk-second-key"


@pytest.mark.parametrize(
    ("named", "ids"), [(("token_id:7", "token_id:8"), (7, 8)), (("token_id:7", "i"), None), (("h", "i"), None), ((), None)]
)
async def test_tokens_that_are_named_by_their_ids(named, ids):
    content = [{"token": name, "logprob": -0.5} for name in named]
    async with chatting(completion(logprobs={"content": content}), logprobs=True) as (model, _):
        reply = await model.chat(HELLO)
    assert (reply.prompt_ids, reply.completion_ids) == (None, ids)


async def test_the_stars_of_a_run_folder_are_no_key():
    with pytest.raises(ConfigError, match=r"llms\.judge\.api_key was not kept: .*write it as \$\{VAR\}"):
        await anext(openai_llm(config(base_url="http://127.0.0.1:9/v1", api_key="**********"), Builder()))
