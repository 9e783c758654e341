"""Form is read strictly, content leniently, and grades count what they say they count."""

from __future__ import annotations

import pytest
from nat_finetune_workflows.tool_calling.answers import canonical_text, is_well_formed, read_call
from nat_finetune_workflows.tool_calling.prompts import EXAMPLE, messages
from nat_finetune_workflows.tool_calling.rewards import ToolCorrectnessConfig, correctness
from nat_finetune_workflows.tool_calling.tools import Call, all_calls, problem_with
from pydantic import ValidationError

WANTED = Call("set_light", {"room": "hall", "colour": "red"})
BODY = '{"name": "set_light", "arguments": {"room": "hall", "colour": "red"}}'


@pytest.mark.parametrize(
    "text",
    [
        f"<call>{BODY}</call>",
        f" <call>\n{BODY}\n</call>\n",
        f"<think> hmm </think> <call> {BODY} </call>",
        f"<think></think><call>{BODY}</call>",
        '<call>{"name": "nonsense", "arguments": {}}</call>',  # form is not content
        '<call>{"name": "x", "arguments": {"a": 1, "b": null, "c": true}}</call>',
    ],
)
def test_what_keeps_the_format(text):
    assert is_well_formed(text)
    assert read_call(text) is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        BODY,
        f"<call>{BODY}",
        f"{BODY}</call>",
        f"so <call>{BODY}</call>",
        f"<call>{BODY}</call> done",
        f"<think> hmm <call>{BODY}</call>",
        f"<call>{BODY}</call><call>{BODY}</call>",
        f"<call>{BODY} {BODY}</call>",
        f"<call>{BODY[:-1]}</call>",
        '<call>{"arguments": {}, "name": "x"}</call>',
        '<call>{"tool": "x", "arguments": {}}</call>',
        '<call>{"name": "x", "parameters": {}}</call>',
        '<call>{"name": "x", "arguments": {}, "note": 1}</call>',
        '<call>{"name": "x", "arguments": {"a": 1, "a": 2}}</call>',
        '<call>{"name": "x", "arguments": {"a": NaN}}</call>',
        '<call>{"name": "x", "arguments": {"a": []}}</call>',
        '<call>{"name": 1, "arguments": {}}</call>',
        '<call>{"name": "x", "arguments": []}</call>',
        "<call>{" * 3000,
        '<call>{"name":' * 3000,
        '<call>{"name": "x", "arguments": {"a": ' + "9" * 5000 + "}}</call>",  # longer than int() takes
    ],
)
def test_what_does_not(text):
    assert not is_well_formed(text)


@pytest.mark.parametrize(
    "text",
    [
        BODY,
        f"I would say {BODY}, or not",
        BODY.replace("name", "tool").replace("arguments", "parameters"),
        f"<call>{BODY}</call><call>{{}}</call>",
        f'{{"note": 1}} {BODY}',
        "{{{ " + BODY,
    ],
)
def test_content_is_read_in_any_form(text):
    assert read_call(text) == WANTED


@pytest.mark.parametrize("text", ["", "no", BODY[:-2], '{"arguments": {"room": "hall"}}', '{"name": 3}', "[" * 100_000])
def test_what_calls_nothing(text):
    assert read_call(text) is None


def test_a_call_without_arguments_has_none():
    assert read_call('{"name": "x"}') == Call("x", {})


@pytest.mark.parametrize(
    ("call", "points"),
    [
        (None, 0),
        (WANTED, 6),
        (Call("play_music", WANTED.arguments), 4),
        (Call("set_light", {"room": "hall", "colour": "blue"}), 4.5),
        (Call("set_light", {"room": "hall"}), 2 + 2 / 3 + 1.5),
        (Call("set_light", {**WANTED.arguments, "day": "monday", "guests": 2}), 2 + 4 / 6 + 3),
        (Call("set_light", {"genre": "hall", "day": "red"}), 2),
        (Call("play_music", {}), 0),
    ],
)
def test_content_is_worth_its_points(call, points):
    assert correctness(call, WANTED) == pytest.approx(points / 6)


def test_a_value_of_another_type_is_another_value():
    wanted = Call("book_table", {"guests": 1})
    for value in ("1", True, 1.0):
        assert correctness(Call("book_table", {"guests": value}), wanted) == 0.5


def test_the_ends_must_be_in_order():
    with pytest.raises(ValidationError, match="low must be below high"):
        ToolCorrectnessConfig(low=1, high=1)


def test_the_best_answer_to_every_call_is_one():
    texts = {canonical_text(call): call for call in all_calls()}
    assert len(texts) == 336
    assert all(is_well_formed(text) and read_call(text) == call and problem_with(call) is None for text, call in texts.items())
    assert max(map(len, texts)) == 96, "the default of tool_length.at_most"


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (Call("fly", {}), "no tool"),
        (Call("call_person", {}), "takes person, found nothing"),
        (Call("call_person", {"person": "Zoe"}), "person can't be 'Zoe'"),
        (Call("book_table", {"day": "monday", "guests": True}), "guests can't be True"),
    ],
)
def test_what_the_household_cannot_do(call, problem):
    assert problem in (problem_with(call) or "")


def test_a_language_model_is_told_the_tools_and_an_example_that_keeps_the_format():
    system, user = messages("call Ben", "chat")
    shown = next(line.split(" -> ")[1] for line in system["content"].splitlines() if " -> " in line)
    assert is_well_formed(shown)
    assert read_call(shown) == EXAMPLE[1]
    assert "set_heating(room, degrees)" in system["content"]
    assert user == {"role": "user", "content": "call Ben"}
    assert messages("call Ben", "tiny") == [user]
