"""The shipped requests: what they want, what splits share, and that the script writes them again."""

from __future__ import annotations

import json
from importlib import resources
from itertools import combinations

import pytest
from nat_finetune_workflows.tool_calling import make_data
from nat_finetune_workflows.tool_calling.prompts import EXAMPLE
from nat_finetune_workflows.tool_calling.tools import TOOLS, VALUES, Call, all_calls, problem_with

DATA = resources.files("nat_finetune_workflows.tool_calling") / "data"
SPLITS = {"train": 336, "validation": 52, "test": 116}


def rows(split: str) -> list[dict]:
    return [json.loads(line) for line in (DATA / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]


def test_the_script_writes_the_shipped_files(tmp_path):
    make_data.main(tmp_path)
    for split in SPLITS:
        assert (tmp_path / f"{split}.jsonl").read_bytes() == (DATA / f"{split}.jsonl").read_bytes(), split


@pytest.mark.parametrize("split", SPLITS)
def test_every_row_asks_for_a_call_that_can_be_carried_out(split):
    found = rows(split)
    assert len({row["id"] for row in found}) == len({row["question"] for row in found}) == len(found) == SPLITS[split]
    for row in found:
        call = Call.from_json(row["answer"])
        assert problem_with(call) is None
        assert row["question"] in make_data.wordings(call)
        assert row["task_key"].split() == [call.name, *map(str, call.arguments.values())]
        assert all(str(value) in row["question"].split() for value in call.arguments.values())


def test_no_call_is_wanted_in_two_splits():
    tasks = {split: {row["task_key"] for row in rows(split)} for split in SPLITS}
    assert all(not tasks[one] & tasks[two] for one, two in combinations(SPLITS, 2))
    assert sum(map(len, tasks.values())) == len(list(all_calls()))


def test_training_shows_every_word_that_is_tested():
    train, test = ([Call.from_json(row["answer"]) for row in rows(split)] for split in ("train", "test"))
    for calls in (train, test):
        assert {call.name for call in calls} == set(TOOLS)
    shown = {(name, value) for call in train for name, value in call.arguments.items()}
    assert shown == {(name, value) for name, values in VALUES.items() for value in values}


def test_the_example_in_the_prompt_is_not_held_out():
    request, call = EXAMPLE
    assert call.to_json() in {row["answer"] for row in rows("train")}
    assert request in make_data.wordings(call)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"name": 1, "arguments": {}}', '{"name": "x"}'])
def test_a_target_that_is_no_call_is_refused(text):
    with pytest.raises(ValueError, match=r"name and arguments|Expecting value"):
        Call.from_json(text)
