"""What is wrong in preference files, as users get it wrong: each error names file, line and reason."""

import json

import pytest

from nat_finetune.errors import DataError
from tests.builders.preferences import built, nemo, says, trl, user

PAIR = {"chosen_response": "a", "rejected_response": "b"}
OPENAI = {"input": {"messages": [user("q")]}, "preferred_output": [says("a")], "non_preferred_output": [says("b")]}
SCORED = {"instruction": "q", "completions": [{"response": "a", "score": 1}, {"response": "b", "score": 0}]}
COLUMNS = {"context": "q", "chosen": "a", "rejected": "b"}
LABELLED = {"context": "q", "first": "x", "second": "y", "label": "l", "prefers_first": ["A"], "prefers_second": ["B"]}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]}


def lines(*rows):
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)


# name: (form, content, config of the builder, what the error says)
FILES = {
    # the file
    "empty file": ("jsonl", "", {}, "the dataset has no records"),
    "cut line": (
        "jsonl",
        lines(trl(), '{"prompt": "q", "cho'),
        {},
        "labels.jsonl:2: column 17: malformed JSON: Unterminated string",
    ),
    "no object": (
        "jsonl",
        lines(trl(), "[1]"),
        {},
        "labels.jsonl:2: expected an object with the columns of one example, found list",
    ),
    "NaN": ("jsonl", lines(trl(), '{"chosen": NaN}'), {}, "labels.jsonl:2: NaN is not JSON; write null"),
    "a key twice": ("jsonl", lines(trl(), '{"chosen": "a", "chosen": "b"}'), {}, "labels.jsonl:2: a key stands twice: chosen"),
    "not UTF-8": (
        "jsonl",
        lines(trl()).encode() + b'{"chosen": "\xe4"}\n',
        {},
        "labels.jsonl:2: column 13: not UTF-8: byte 0xe4",
    ),
    "half a surrogate pair": (
        "jsonl",
        lines(trl(), r'{"chosen": "\ud800"}'),
        {},
        "labels.jsonl:2: holds half of a surrogate pair",
    ),
    "id is a fraction": (
        "jsonl",
        lines(trl(), trl(id=1.5)),
        {},
        "labels.jsonl:2: the column 'id' holds 1.5, expected a text or a whole",
    ),
    "too few cells": ("csv", "q,a,b\nx,y,z\nx,y\n", {"columns": COLUMNS}, "labels.csv:3: 2 cells, the header has 3 (q, a, b)"),
    "open quote": (
        "csv",
        'q,a,b\nx,y,z\nx,"y,z\n',
        {"columns": COLUMNS},
        "labels.csv:3: malformed CSV: unexpected end of data",
    ),
    "no list": ("json", '{"chosen": 1}', {}, "labels.json:1: expected a list of objects, found '{'"),
    "cut list": ("json", f"[{json.dumps(trl())},\n", {}, "labels.json:2:1: malformed JSON: Expecting value"),
    "an item is a text": ("json", f'[{json.dumps(trl())},\n"a"]', {}, "labels.json:2: expected an object"),
    "no Parquet": ("parquet", b"PAR1 but not really", {}, "labels.parquet: can't be read as Parquet"),
    # which format
    "unknown columns": (
        "jsonl",
        lines({"question": "q", "good": "a"}),
        {},
        "labels.jsonl:1: the format of the records is not known: found the columns question, good",
    ),
    "unpaired labels": (
        "jsonl",
        lines({"prompt": "q", "completion": "a", "label": True}),
        {},
        "completions with a label of their own (TRL's unpaired preferences) are no preferences",
    ),
    "two formats in one record": (
        "jsonl",
        lines({"prompt": "q", "chosen": "a", "rejected": "b", **PAIR}),
        {},
        "the records fit more than one format: trl (labels.jsonl:1), nemo-customizer (labels.jsonl:1); set `format:`",
    ),
    "two formats in one file": (
        "jsonl",
        lines(trl(), OPENAI),
        {},
        "more than one format: trl (labels.jsonl:1), openai (labels.jsonl:2); set `format:`",
    ),
    "ranks and scores": (
        "jsonl",
        lines({"context": "q", "completions": [{"rank": 0, "completion": "a", "score": 1}]}),
        {},
        "more than one format: nemo-rl (labels.jsonl:1), scored (labels.jsonl:1)",
    ),
    "another format than said": (
        "jsonl",
        lines(OPENAI),
        {"format": "trl"},
        "labels.jsonl:1: there is no 'chosen', found 'input', 'preferred_output'",
    ),
    "levels": (
        "jsonl",
        lines(trl(), trl(notes=json.loads("[" * 200 + "]" * 200))),
        {},
        "labels.jsonl:2: nested too deeply, more than 100 levels",
    ),
    # messages and texts
    "no chosen": (
        "jsonl",
        lines(trl(), {"prompt": "q", "rejected": "b"}),
        {},
        "labels.jsonl:2: there is no 'chosen', found 'prompt', 'rejected'",
    ),
    "chosen is null": ("jsonl", lines(trl(chosen=None)), {}, "labels.jsonl:1: 'chosen' is null"),
    "chosen is a number": (
        "jsonl",
        lines(trl(chosen=7)),
        {},
        "labels.jsonl:1: 'chosen' holds a number, expected a text or a list of messages",
    ),
    "chosen is blank": (
        "jsonl",
        lines(trl(chosen=" ")),
        {"format": "trl"},
        "labels.jsonl:1: one of 'chosen' and 'rejected' is a text, the other is not",
    ),
    "a blank text": ("jsonl", lines(trl(chosen=[says(" \n")])), {}, "labels.jsonl:1: 'chosen' is blank"),
    "blank prompt": ("jsonl", lines(trl(prompt=" ")), {}, "labels.jsonl:1: 'prompt' is blank: there is nothing to answer"),
    "no message": ("jsonl", lines(trl(rejected=[])), {}, "labels.jsonl:1: 'rejected' is an empty list"),
    "ShareGPT keys": (
        "jsonl",
        lines(trl(prompt=[{"from": "human", "value": "q"}])),
        {},
        "labels.jsonl:1: message 1 of 'prompt' has no role, found 'from', 'value'",
    ),
    "role is a number": (
        "jsonl",
        lines(trl(prompt=[{"role": 1, "content": "q"}])),
        {},
        "labels.jsonl:1: message 1 of 'prompt' has no role, found 1",
    ),
    "no content": (
        "jsonl",
        lines(trl(prompt=[{"role": "user"}])),
        {},
        "labels.jsonl:1: message 1 of 'prompt' has nothing as content, expected a text",
    ),
    "a picture": (
        "jsonl",
        lines(trl(prompt=[user([{"type": "image_url", "image_url": "x"}])])),
        {},
        "labels.jsonl:1: message 1 of 'prompt' holds a content part 'image_url', expected parts of type 'text'",
    ),
    "the user answers": (
        "jsonl",
        lines(trl(chosen=[user("good")])),
        {},
        "labels.jsonl:1: a completion is a message of 'user', expected 'assistant'",
    ),
    "a tool call": (
        "jsonl",
        lines(trl(chosen=[CALL])),
        {},
        "labels.jsonl:1: a completion calls tools; a preference pair compares texts",
    ),
    "context ends with the assistant": (
        "jsonl",
        lines(trl(prompt=[user("q"), says("so")])),
        {},
        "labels.jsonl:1: the context ends with a message of the assistant",
    ),
    "nothing in common": (
        "jsonl",
        lines({"chosen": "Yes it is", "rejected": "No it is not"}),
        {},
        "labels.jsonl:1: there is no prompt, and 'chosen' and 'rejected' don't begin with the same words",
    ),
    "no message in common": (
        "jsonl",
        lines({"chosen": [user("p"), says("a")], "rejected": [user("q"), says("b")]}),
        {},
        "labels.jsonl:1: there is no prompt, and 'chosen' and 'rejected' don't begin with the same messages",
    ),
    "several messages": (
        "jsonl",
        lines(trl(chosen=[says("a"), user("?"), says("b")])),
        {},
        "labels.jsonl:1: a completion has 3 messages; `several_messages: first_difference`",
    ),
    "one begins the other": (
        "jsonl",
        lines(trl(chosen=[says("a"), user("?"), says("b")], rejected=[says("a")])),
        {"several_messages": "first_difference"},
        "labels.jsonl:1: a completion is the beginning of another",
    ),
    "only a tool differs": (
        "jsonl",
        lines(
            trl(
                chosen=[CALL, {"role": "tool", "content": "1"}, says("a")],
                rejected=[CALL, {"role": "tool", "content": "2"}, says("b")],
            )
        ),
        {"several_messages": "first_difference"},
        "labels.jsonl:1: the completions first differ in a message of tool, not of the assistant",
    ),
    # ranks and scores
    "one completion": ("jsonl", lines(nemo((0, "a"))), {}, "labels.jsonl:1: 'completions' has 1 entry, a preference needs 2"),
    "rank is a text": (
        "jsonl",
        lines(nemo((0, "a"), ("1", "b"))),
        {},
        "labels.jsonl:1: the rank of completion 2 is '1', expected a number",
    ),
    "no rank": (
        "jsonl",
        lines(nemo((0, "a"), (1, "b")), {"context": "q", "completions": [{"rank": 0, "completion": "a"}, {"completion": "b"}]}),
        {},
        "labels.jsonl:2: completion 2 of 'completions' is not an object with rank and completion",
    ),
    "completions are an object": (
        "jsonl",
        lines(nemo(completions={"a": 1})),
        {"format": "nemo-rl"},
        "labels.jsonl:1: 'completions' holds an object, expected a list",
    ),
    "more texts than scores": (
        "jsonl",
        lines({"prompt": "q", "responses": ["a", "b", "c"], "scores": [1, 0]}),
        {},
        "labels.jsonl:1: 'responses' has 3 entries, 'scores' 2",
    ),
    "an entry without a text": (
        "jsonl",
        lines(SCORED, {**SCORED, "completions": [{"model": "m", "score": 1}, {"response": "b", "score": 0}]}),
        {},
        "labels.jsonl:2: entry 1 of 'completions' has no text; expected one of response",
    ),
    "scored without a context": (
        "jsonl",
        lines({"responses": ["a", "b"], "scores": [1, 0]}),
        {},
        "labels.jsonl:1: there is no column with a context; expected one of prompt",
    ),
    "chosen scores less": (
        "jsonl",
        lines(trl(score_chosen=1, score_rejected=2)),
        {},
        "labels.jsonl:1: the chosen side scores 1, less than the rejected one's 2",
    ),
    "half of the scores": (
        "jsonl",
        lines(trl(score_chosen=1)),
        {},
        "labels.jsonl:1: 'score_rejected' is None, expected a number",
    ),
    "no scores to compare": (
        "jsonl",
        lines(trl()),
        {"min_score_diff": 0.1},
        "labels.jsonl:1: has no scores, which `min_score_diff` compares",
    ),
    # OpenAI
    "input without messages": (
        "jsonl",
        lines({**OPENAI, "input": "q"}),
        {},
        "labels.jsonl:1: 'input' is not an object with messages",
    ),
    "tools": (
        "jsonl",
        lines({**OPENAI, "input": {"messages": [user("q")], "tools": [{"type": "function"}]}}),
        {},
        "labels.jsonl:1: 'input.tools' are not passed on to a chat template",
    ),
    # tables
    "no such column": (
        "csv",
        "q,better,b\nx,y,z\n",
        {"columns": COLUMNS},
        "no record has the column 'a', found 'q', 'better', 'b'",
    ),
    "an empty cell": ("csv", "q,a,b\nx,y,z\nx,,z\n", {"columns": COLUMNS}, "labels.csv:3: 'a' is blank"),
    "another label": (
        "csv",
        "q,x,y,l\nw,1,2,A\nw,1,2,C\n",
        {"columns": LABELLED},
        "labels.csv:3: the label 'l' is 'C', expected one of 'A', 'B'",
    ),
    "score is no number": (
        "csv",
        "q,a,b,s,t\nw,1,2,high,0\n",
        {"columns": {**COLUMNS, "chosen_score": "s", "rejected_score": "t"}},
        "labels.csv:2: 's' is 'high', expected a number",
    ),
    "Parquet of numbers": (
        "parquet",
        [{"q": "x", "a": "y", "b": "z"}, {"q": "x", "a": None, "b": "z"}],
        {"columns": COLUMNS},
        "labels.parquet:2: 'a' is null",
    ),
}


def text_of(folder, name):
    """What the user reads."""
    form, content, config, _ = FILES[name]
    with pytest.raises(DataError) as error:
        built(folder, content, form, **config)
    return str(error.value)


def test_there_are_many():
    assert len(FILES) >= 30


@pytest.mark.parametrize("name", FILES)
def test_the_error_says_where_and_why(tmp_path, name):
    text = text_of(tmp_path, name)
    assert FILES[name][3] in text
    assert "labels." in text or FILES[name][3] in ("the dataset has no records",) or "no record has the column" in text


def test_all_bad_records_are_named_at_once(tmp_path):
    rows = [trl(), trl(chosen=[]), "{", trl(rejected=None), trl()]
    with pytest.raises(DataError) as error:
        built(tmp_path, lines(*rows))
    said = str(error.value).splitlines()
    assert said[0] == "3 of 5 records can't be used as trl (chosen and rejected, with or without prompt):"
    assert [line.split(": ")[0].strip() for line in said[1:4]] == ["labels.jsonl:2", "labels.jsonl:3", "labels.jsonl:4"]
    assert said[4] == "correct them, or leave them out with `on_bad_record: skip`"
