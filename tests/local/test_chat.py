"""Messages to ids as the template says, and sampled ids to a message that the template takes back."""

from __future__ import annotations

import pytest

from nat_finetune.errors import BackendError
from nat_finetune.local.chat import ChatFormat, end_of_turn_ids, parse_tool_calls
from nat_finetune.types import FinishReason
from tests.fixtures.models import tiny_model

TOOLS = [{"type": "function", "function": {"name": "lookup", "parameters": {"type": "object"}}}]
ASK = [{"role": "user", "content": "move 3"}]


@pytest.fixture
def tokenizer():
    return tiny_model("llama")[1]


@pytest.fixture
def chat(tokenizer):
    return ChatFormat(tokenizer, tiny_model("llama")[0])


def test_prompt_is_the_templates_own(chat, tokenizer):
    text = tokenizer.decode(chat.render(ASK, TOOLS))
    assert text == tokenizer.apply_chat_template(ASK, tools=TOOLS, tokenize=False, add_generation_prompt=True)
    assert text.endswith("<|im_start|>assistant\n")
    assert chat.render(ASK, TOOLS) == chat.render(ASK, TOOLS) != chat.render(ASK)


def test_tool_arguments_reach_the_template_as_a_mapping(chat, tokenizer):
    def turn(arguments):
        call = {"id": "call_0", "type": "function", "function": {"name": "lookup", "arguments": arguments}}
        return [*ASK, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "value"}]

    as_text, as_mapping = chat.render(turn('{"key": "a"}'), TOOLS), chat.render(turn({"key": "a"}), TOOLS)
    assert as_text == as_mapping
    assert '<tool_call>{"name": "lookup", "arguments": {"key": "a"}}</tool_call>' in tokenizer.decode(as_mapping)


def test_sampled_tool_calls_become_tool_calls_and_survive_the_next_prompt(chat, tokenizer):
    text = 'let me see<tool_call>{"name": "lookup", "arguments": {"key": "a", "n": [1, 2]}}</tool_call>'
    ids = (*chat.encode(text), tokenizer.eos_token_id)
    message, reason = chat.parse(ids, FinishReason.STOP, tools=True)
    assert reason is FinishReason.TOOL_CALLS
    assert message["content"] == "let me see"
    assert message["tool_calls"][0]["function"] == {"name": "lookup", "arguments": {"key": "a", "n": [1, 2]}}
    prompt = chat.render(ASK, TOOLS)
    following = chat.render([*ASK, message, {"role": "tool", "content": "x"}], TOOLS)
    assert following[: len(prompt) + len(ids)] == (*prompt, *ids), "the next turn's prompt extends this one token for token"


NO_CALLS = ['{"name": "lookup"', '["lookup"]', '{"arguments": {}}', '{"name": 3}', '{"name": "f", "arguments": "x"}']
TOO_MUCH = ['{"name": ' + "[" * 100_000, '{"name": "f", "arguments": {"n": ' + "1" * 5000 + "}}"]  # a model that repeats itself


@pytest.mark.parametrize("inner", NO_CALLS + TOO_MUCH)
def test_what_is_no_call_stays_text(inner):
    text = f"<tool_call>{inner}</tool_call>"
    assert parse_tool_calls(text) == ([], text)


def test_several_calls_have_ids_of_their_own():
    calls, rest = parse_tool_calls(
        '<tool_call>\n{"name": "f"}\n</tool_call>\n<tool_call>{"name": "g", "arguments": {"a": 1}}</tool_call>'
    )
    assert [(call["id"], call["function"]) for call in calls] == [
        ("call_0", {"name": "f", "arguments": {}}),
        ("call_1", {"name": "g", "arguments": {"a": 1}}),
    ]
    assert rest == ""


def test_calls_are_looked_for_only_where_tools_were_offered(chat):
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    message, reason = chat.parse(chat.encode(text), FinishReason.LENGTH)
    assert (message, reason) == ({"role": "assistant", "content": text}, FinishReason.LENGTH)


def test_a_truncated_reply_with_a_call_stays_truncated(chat):
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call> and'
    message, reason = chat.parse(chat.encode(text), FinishReason.LENGTH, tools=True)
    assert reason is FinishReason.LENGTH
    assert message["content"] == "and"


def test_text_ends_before_the_stop_string_and_the_end_of_turn(chat, tokenizer):
    ids = (*chat.encode("move 3\nmove 4"), tokenizer.eos_token_id)
    assert chat.parse(ids, FinishReason.STOP)[0]["content"] == "move 3\nmove 4"
    assert chat.parse(ids, FinishReason.STOP, stop=("\n",))[0]["content"] == "move 3"


def test_a_turn_ends_with_any_token_that_says_so(tokenizer):
    model, _ = tiny_model("llama")
    start, eos, pad = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>", "<pad>"])
    model.generation_config.eos_token_id = [pad]
    tokenizer.eos_token = "<s>"
    model.config.eos_token_id = None
    assert end_of_turn_ids(tokenizer, model) == tuple(sorted({pad, tokenizer.eos_token_id, eos})), (
        "<|im_end|> is the template's"
    )
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}<|im_start|>{% endfor %}"
    assert start in end_of_turn_ids(tokenizer, model)
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }} plain text {% endfor %}"
    assert end_of_turn_ids(tokenizer, model) == tuple(sorted({pad, tokenizer.eos_token_id}))


def test_a_model_without_an_end_is_refused(tokenizer):
    model, _ = tiny_model("llama")
    model.generation_config.eos_token_id = model.config.eos_token_id = None
    tokenizer.eos_token = None
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(BackendError, match="no end-of-turn token"):
        end_of_turn_ids(tokenizer, model)


def test_a_template_that_refuses_says_which_messages(tokenizer):
    tokenizer.chat_template = "{{ raise_exception('no system role') }}"
    model, _ = tiny_model("llama")
    with pytest.raises(BackendError, match=r"roles: system, user.*no system role"):
        ChatFormat(tokenizer, model).render([{"role": "system", "content": "x"}, *ASK])
