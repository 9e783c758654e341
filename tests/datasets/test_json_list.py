"""A JSON list read in blocks: wherever a block ends, the same rows and the same errors."""

import json

import pytest

from nat_finetune.datasets import json_list
from nat_finetune.datasets.rows import BadRow, Counts, Row
from nat_finetune.errors import DataError

ITEMS = [
    {"id": 1, "text": 'a "quoted" \\ ü 😀 \n end', "deep": {"list": [1, 2.5, -3e-7, None, True, {"x": []}]}},
    {"id": "007", "text": "", "long": "word " * 40},
    {"id": 123456789, "escaped": "\u2028"},
]


@pytest.fixture(params=[1, 2, 3, 7, 16, 64, 1000])
def block(request, monkeypatch):
    monkeypatch.setattr(json_list, "BLOCK", request.param)


def read(folder, text):
    path = folder / "data.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return list(json_list.json_array(path, Counts()))


@pytest.mark.parametrize("options", [{}, {"indent": 2}, {"ensure_ascii": False}, {"separators": (",", ":")}])
def test_rows(tmp_path, block, options):
    text = "\ufeff" + json.dumps(ITEMS, **options) + "\r\n"
    assert [row.values for row in read(tmp_path, text)] == ITEMS


def test_lines(tmp_path, block):
    assert read(tmp_path, '[\n{"a":\n1},\n 12345\n,{"b": 2}, "x"]') == [
        Row(2, {"a": 1}),
        BadRow(4, "expected an object with the columns of one example, found int"),
        Row(5, {"b": 2}),
        BadRow(5, "expected an object with the columns of one example, found str"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[{"a": 1},\n {"b": tru, "c": "ddddddddddddddddddd"}]', ":2:8: malformed JSON: Expecting value"),
        ('[{"a": 1},\n {"b": 2', ":2:9: malformed JSON: Expecting ',' delimiter"),
        ('[{"a": 1},\n {"b": "2', ":2:8: malformed JSON: Unterminated string"),
        ('[{"a": 1}\n {"b": 2}]', ":2:2: malformed JSON: expected `,` or `]`"),
        (b'[{"a": 1},\n {"b": "\xe4"}]', ":2:9: not UTF-8: byte 0xe4"),
        (b'[{"a": 1},\n {"b": "\xf0\x9f', ":2:9: not UTF-8: byte 0xf0"),
    ],
)
def test_errors(tmp_path, block, text, said):
    with pytest.raises(DataError, match="data.json" + said.replace("`", ".").replace("[", r"\[")):
        read(tmp_path, text)


def test_it_is_a_stream(tmp_path, monkeypatch):
    """What is not reached yet may be broken."""
    monkeypatch.setattr(json_list, "BLOCK", 16)
    path = tmp_path / "data.json"
    path.write_text('[{"a": 1}, {"b": 2}, {"c": 3}, broken')
    rows = json_list.json_array(path, Counts())
    assert [next(rows).values for _ in range(2)] == [{"a": 1}, {"b": 2}]
    with pytest.raises(DataError, match="Expecting value"):
        list(rows)
