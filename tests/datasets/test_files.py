"""Examples from files: values as they are written, and every fault with its line."""

from __future__ import annotations

import pytest

from nat_finetune.datasets.files import CSVDatasetConfig, FileDataset, JSONDatasetConfig, JSONLDatasetConfig
from nat_finetune.datasets.json_list import json_array
from nat_finetune.datasets.rows import Counts, comma_separated, jsonl
from nat_finetune.errors import DataError
from nat_finetune.types import Example

FORMATS = {
    "jsonl": (JSONLDatasetConfig, jsonl),
    "json": (JSONDatasetConfig, json_array),
    "csv": (CSVDatasetConfig, comma_separated),
}


def dataset(tmp_path, form, text, **keys):
    path = tmp_path / f"data.{form}"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    config, reader = FORMATS[form]
    return FileDataset(config(file_path=str(path), **keys), reader)


def load(tmp_path, form, text, **keys):
    return list(dataset(tmp_path, form, text, **keys).load())


def test_jsonl(tmp_path):
    text = '{"id": "007", "question": "3", "answer": 7, "extra": [1]}\n{"id": 7, "question": {"board": 1}, "task_key": "t"}\n'
    assert load(tmp_path, "jsonl", text) == [
        Example("007", "3", 7, None, {"extra": [1]}),
        Example(7, {"board": 1}, None, "t", {}),
    ]


def test_json(tmp_path):
    text = '[\n {"id": 1, "question": "a", "answer": null},\n\n {"id": "1", "question": "b", "answer": ""}]\n'
    assert load(tmp_path, "json", text) == [Example(1, "a"), Example("1", "b", "")]


def test_csv_cells_are_texts(tmp_path):
    text = 'id,question,answer,n\n01,"a\nb",NA,1.0\n\n02,NA,,\n'
    assert load(tmp_path, "csv", text) == [
        Example("01", "a\nb", "NA", None, {"n": "1.0"}),
        Example("02", "NA", None, None, {"n": ""}),
    ]


@pytest.mark.parametrize(
    ("form", "text", "blank"),
    [
        ("jsonl", '\ufeff{"id": 1, "question": "a"}\r\n  \r\n\r\n', 2),
        ("json", '\ufeff[{"id": 1, "question": "a"}]\r\n', 0),
        ("csv", "\ufeffid,question\r\n\r\n1,a\r\n", 1),
    ],
)
def test_byte_order_marks_and_blank_lines(tmp_path, form, text, blank):
    data = dataset(tmp_path, form, text)
    assert [example.input for example in data.load()] == ["a"]
    assert data.counts == Counts(rows=1, blank_lines=blank, filtered=0)


@pytest.mark.parametrize("form", FORMATS)
def test_an_empty_file_has_no_examples(tmp_path, form):
    assert load(tmp_path, form, "") == []


def test_an_empty_list_has_no_examples(tmp_path):
    assert load(tmp_path, "json", "[ ]") == []


def test_columns_by_name(tmp_path):
    text = '{"nr": 1, "q": "a", "a": "b", "game": 5, "id": "kept"}\n'
    structure = {"question_key": "q", "answer_key": "a"}
    (example,) = load(tmp_path, "jsonl", text, id_key="nr", task_key="game", structure=structure)
    assert example == Example(1, "a", "b", "5", {"id": "kept"})


def test_without_structure_the_row_is_the_input(tmp_path):
    (example,) = load(tmp_path, "jsonl", '{"id": 1, "x": "ü", "answer": 2}', structure={"disable": True})
    assert example.input == '{"id": 1, "x": "ü", "answer": 2}'
    assert example.target is None


def test_it_is_a_stream(tmp_path):
    """The first example comes before the fault in a later line is read."""
    stream = dataset(tmp_path, "jsonl", '{"id": 1, "question": "a"}\nbroken\n').load()
    assert next(stream).id == 1
    with pytest.raises(DataError, match=":2:1: malformed JSON"):
        next(stream)


# ---------------------------------------------------------------------------------------------------------------- filter

ROWS = "id,question,level,kind\n1,a,10,x\n2,b,12,y\n3,c,20,x\n4,,20,z\n"


@pytest.mark.parametrize(
    ("keys", "ids"),
    [
        ({"allowlist": {"field": {"level": ["1*"]}}}, ["1", "2"]),
        ({"allowlist": {"field": {"level": ["1*"], "kind": ["x", "z"]}}}, ["1"]),
        ({"allowlist": {"field": {"level": [10, 20]}}, "denylist": {"field": {"kind": ["z"]}}}, ["1", "3"]),
        ({"denylist": {"field": {"kind": ["[yz]"]}}}, ["1", "3"]),
    ],
)
def test_filter(tmp_path, keys, ids):
    """Row 4 has a blank question: no fault where the filter leaves the row out."""
    data = dataset(tmp_path, "csv", ROWS, filter=keys)
    assert [example.id for example in data.load()] == ids
    assert data.counts.filtered == 4 - len(ids)


def test_a_row_without_the_column_does_not_pass_an_allowlist(tmp_path):
    text = '{"id": 1, "question": "a", "k": 1}\n{"id": 2, "question": "b"}\n'
    assert [e.id for e in load(tmp_path, "jsonl", text, filter={"allowlist": {"field": {"k": [1]}}})] == [1]


# ---------------------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("form", "text", "keys", "message"),
    [
        ("jsonl", '{"id": 1, "question": "a"}\n{"id": 2, "question": "b",}', {}, r":2:27: malformed JSON"),
        ("jsonl", '{"id": 1, "question": NaN}', {}, ":1: NaN is not JSON; write null"),
        ("jsonl", '{"id": 1, "id": 2, "question": "a"}', {}, ":1: a key stands twice: id"),
        ("jsonl", "[1]", {}, ":1: expected an object with the columns of one example, found list"),
        ("jsonl", b'{"id": 1, "question": "a"}\n{"id": "\xff"}', {}, ":2:9: not UTF-8: byte 0xff"),
        ("jsonl", '{"idx": 1, "question": "a"}', {}, "there is no column 'id', found idx, question .did you mean 'idx'"),
        ("jsonl", '{"id": null, "question": "a"}', {}, ":1: the column 'id' holds None, expected a text or a whole number"),
        ("jsonl", '{"id": 1.5, "question": "a"}', {}, "the column 'id' holds 1.5"),
        ("jsonl", '{"id": true, "question": "a"}', {}, "the column 'id' holds True"),
        ("jsonl", '{"id": "", "question": "a"}', {}, "the column 'id' holds ''"),
        (
            "jsonl",
            '{"id": 1, "question": " \\n"}',
            {},
            ":1: the column 'question' holds ' .n', expected a question that is not",
        ),
        ("jsonl", '{"id": 1, "question": null}', {}, "the column 'question' holds None"),
        ("jsonl", '{"id": 1, "qestion": "a"}', {}, "there is no column 'question', found id, qestion .did you mean 'qestion'"),
        ("jsonl", '{"id": 1, "question": "a", "task_key": [1]}', {}, r":1: the column 'task_key' holds \[1\], expected a text"),
        ("jsonl", '{"id": 1, "question": "a"}', {"task_key": "game"}, "no row has the columns game, found id, question"),
        (
            "jsonl",
            '{"id": 1, "question": "a"}',
            {"filter": {"denylist": {"field": {"kind": ["x"]}}}},
            "no row has the columns kind, found id, question",
        ),
        (
            "jsonl",
            "".join(f'{{"id": {n}, "question": "a"}}\n' for n in (1, 2, 1, 3, 2, 1)),
            {},
            "2 ids occur more than once: 1 in lines 1, 3, 6; 2 in lines 2, 5; ids must be unique",
        ),
        ("json", '{"rows": []}', {}, ":1: expected a list of objects, found '{'"),
        ("json", '[\n{"id": 1, "question": "a"},\n{"id": 2, "question": ""}]', {}, ":3: the column 'question' holds ''"),
        ("json", '[{"id": 1, "question": "a"},\n]', {}, ":2:1: malformed JSON: expected another object"),
        ("json", '[{"id": 1, "question": "a"}\n {"id": 2}]', {}, ":2:2: malformed JSON: expected `,` or `]`"),
        ("json", '[{"id": 1, "question": "a"}', {}, "malformed JSON: expected `,` or `]`"),
        ("json", "[", {}, "malformed JSON: Expecting value"),
        ("json", '[{"id": 1, "question": "a"}] []', {}, ":1:30: malformed JSON: expected nothing after the list"),
        ("csv", "id,question,id\n1,a,2\n", {}, ":1: the header names a column twice: id"),
        ("csv", "id,question\n1,a\n2\n", {}, r":3: 1 cells, the header has 2 \(id, question\)"),
        ("csv", 'id,question\n1,"a\nb', {}, ":2: malformed CSV: unexpected end of data"),
        ("csv", f"id,question\n1,{'a' * 140_000}\n", {}, "write long texts as JSONL"),
        ("csv", "id,question\n1, \n", {}, ":2: the column 'question' holds ' '"),
    ],
)
def test_faults_name_file_and_line(tmp_path, form, text, keys, message):
    with pytest.raises(DataError, match=message) as caught:
        load(tmp_path, form, text, **keys)
    assert str(tmp_path / f"data.{form}") in str(caught.value)


def test_missing_file_and_folder(tmp_path):
    for name, message in (("no.jsonl", "there is no file"), (".", "is a folder")):
        data = FileDataset(JSONLDatasetConfig(file_path=str(tmp_path / name)), jsonl)
        with pytest.raises(DataError, match=message):
            list(data.load())
