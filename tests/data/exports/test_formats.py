"""Rows as each trainer reads them, word for word, and what they can't hold."""

import json

import pytest

from nat_finetune.data.exports.formats import TAKES, Exported, RowWriter, dataset_info, file_names
from nat_finetune.errors import DataError

SYSTEM, USER = {"role": "system", "content": "be brief"}, {"role": "user", "content": "2 + 2?"}
GOOD, BAD = {"role": "assistant", "content": "4"}, {"role": "assistant", "content": "5"}
PAIR = Exported((SYSTEM, USER), GOOD, BAD, scores=(0.9, 0.2))

PAIR_ROWS = {
    "nemo-rl": {
        "context": [SYSTEM, USER],
        "completions": [{"rank": 0, "completion": [GOOD]}, {"rank": 1, "completion": [BAD]}],
    },
    "trl": {"prompt": [SYSTEM, USER], "chosen": [GOOD], "rejected": [BAD], "score_chosen": 0.9, "score_rejected": 0.2},
    "openai": {"input": {"messages": [SYSTEM, USER]}, "preferred_output": [GOOD], "non_preferred_output": [BAD]},
    "nemo-customizer": {"prompt": [SYSTEM, USER], "chosen_response": "4", "rejected_response": "5"},
    "sharegpt": {
        "conversations": [{"from": "system", "value": "be brief"}, {"from": "human", "value": "2 + 2?"}],
        "chosen": {"from": "gpt", "value": "4"},
        "rejected": {"from": "gpt", "value": "5"},
    },
}
SINGLE_ROWS = {
    "trl": {"prompt": [SYSTEM, USER], "completion": [GOOD]},
    "openai": {"messages": [SYSTEM, USER, GOOD]},
    "nemo-customizer": {"messages": [SYSTEM, USER, GOOD]},
    "sharegpt": {
        "conversations": [
            {"from": "system", "value": "be brief"},
            {"from": "human", "value": "2 + 2?"},
            {"from": "gpt", "value": "4"},
        ]
    },
}


def written(form, *items, kind="pairs", **options):
    writer = RowWriter(form, kind, **options)
    lines = [writer.line(item) for item in items]
    return [json.loads(writer.finished(line)) for line in lines]


def pair(*context, text=None, **changes):
    return Exported(context, changes.pop("completion", GOOD), BAD, context_text=text, **changes)


@pytest.mark.parametrize("form", TAKES["pairs"])
def test_a_pair(form):
    assert written(form, PAIR) == [PAIR_ROWS[form]]


@pytest.mark.parametrize("form", TAKES["demonstrations"])
def test_a_demonstration_and_a_pair_of_which_only_the_chosen_side_is_written(form):
    assert written(form, Exported((SYSTEM, USER), GOOD), PAIR, kind="demonstrations") == [SINGLE_ROWS[form]] * 2


def test_a_rollouts_call_has_its_rewards():
    item = Exported((USER,), GOOD, reward=0.5, rewards={"right": 1.0, "short": None})
    assert written("trl", item, kind="rollouts") == [
        {"prompt": [USER], "completion": [GOOD], "reward": 0.5, "rewards": {"right": 1.0, "short": None}}
    ]


def test_a_task_name_is_in_every_row_where_it_is_given():
    assert [row["task_name"] for row in written("nemo-rl", PAIR, PAIR, task_name="claims")] == ["claims", "claims"]


def test_scores_are_columns_only_where_all_pairs_have_some():
    rows = written("trl", PAIR, pair(USER))
    assert [set(row) for row in rows] == [{"prompt", "chosen", "rejected"}] * 2


def test_a_text_as_context_stays_one_for_customizer_where_all_are_texts():
    text = pair(USER, text="2 + 2?")
    assert [row["prompt"] for row in written("nemo-customizer", text, text)] == ["2 + 2?", "2 + 2?"]
    assert [row["prompt"] for row in written("nemo-customizer", text, PAIR)] == [[USER], [SYSTEM, USER]]


def test_text_parts_are_joined_and_null_fields_left_out():
    parts = {"role": "user", "content": [{"type": "text", "text": "2 + "}, {"type": "text", "text": "2?"}], "name": None}
    assert written("trl", pair(parts))[0]["prompt"] == [USER]


def test_openai_files_hold_tool_calls_in_the_context():
    calls = [{"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}]
    context = (
        USER,
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "content": "4", "tool_call_id": "1"},
    )
    assert written("openai", pair(*context))[0]["input"]["messages"] == [
        USER,
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "content": "4", "tool_call_id": "1"},
    ]
    for form in set(TAKES["pairs"]) - {"openai"}:
        with pytest.raises(DataError, match=f"message 2 of the context has tool_calls, which {form} files do not hold"):
            written(form, pair(*context))


@pytest.mark.parametrize(
    ("form", "item", "said"),
    [
        ("trl", pair(), "the context is empty"),
        ("trl", pair(USER, GOOD), "the context ends with the assistant"),
        ("trl", pair({"role": "tool", "content": "4"}), "message 1 of the context is of 'tool', which trl files do not hold"),
        ("trl", pair({"role": "user", "content": [{"type": "image_url"}]}), "holds a content part 'image_url'"),
        ("trl", pair({"role": "user", "content": 4}), "message 1 of the context holds no text"),
        ("nemo-rl", pair(USER, completion=USER), "the completion is a message of 'user', expected 'assistant'"),
        ("sharegpt", pair(USER, USER), "user and assistant do not take turns"),
        ("sharegpt", pair(SYSTEM), "does not end with the user"),
        ("sharegpt", pair(USER, SYSTEM), "user and assistant do not take turns"),
    ],
)  # fmt: skip
def test_what_a_format_can_not_hold(form, item, said):
    with pytest.raises(DataError, match=said):
        written(form, item)


def test_customizers_files_are_where_its_data_store_has_them():
    assert file_names("nemo-customizer") == ("training/training_file.jsonl", "validation/validation_file.jsonl")
    assert file_names("trl") == ("train.jsonl", "validation.jsonl")


def test_llama_factory_is_told_what_sharegpt_files_are():
    made = dataset_info("pairs", {"train": "train.jsonl"})
    assert made["train"]["ranking"] is True
    assert made["train"]["columns"] == {"messages": "conversations", "chosen": "chosen", "rejected": "rejected"}
    assert "ranking" not in dataset_info("demonstrations", {"train": "train.jsonl"})["train"]
