"""`preference_dataset_builder`: every format to pairs, by hand-made records with known answers."""

import pytest
from pydantic import ValidationError

from nat_finetune.builders.preference import ColumnsConfig, PreferenceDatasetBuilderConfig
from nat_finetune.datasets.files import JSONLDatasetConfig
from nat_finetune.errors import DataError
from nat_finetune.types import Dropped, DropReason, PreferencePair, Record
from tests.builders.preferences import built, nemo, reading, says, trl, user

CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]}


def texts(made):
    return [(item.chosen, item.rejected) for item in made if isinstance(item, PreferencePair)]


def reasons(made):
    return [(item.what, item.reason) for item in made if isinstance(item, Dropped)]


ONE_PAIR = {
    "TRL, messages": trl(),
    "TRL, texts": {"prompt": "q", "chosen": "good", "rejected": "bad"},
    "TRL, text and messages": trl(prompt="q"),
    "TRL, implicit prompt of messages": {"chosen": [user("q"), says("good")], "rejected": [user("q"), says("bad")]},
    "TRL, prompt said again on both sides": trl(chosen=[user("q"), says("good")], rejected=[user("q"), says("bad")]),
    "NeMo RL": nemo((0, "good"), (1, "bad"), task_name="t"),
    "NeMo RL, the lower rank is preferred": nemo((7, "bad"), (-1, "good")),
    "NeMo RL, null columns of a table": {
        "context": [{**user("q"), "name": None, "tool_calls": None}],
        "completions": [{"rank": 1, "completion": "bad"}, {"rank": 0, "completion": [says("good")]}],
    },
    "OpenAI": {
        "input": {"messages": [user("q")], "tools": [], "parallel_tool_calls": True},
        "preferred_output": [says("good")],
        "non_preferred_output": [says("bad")],
    },
    "OpenAI, content parts": {
        "input": {"messages": [user([{"type": "text", "text": "q"}])]},
        "preferred_output": [says([{"type": "text", "text": "go"}, {"type": "text", "text": "od"}])],
        "non_preferred_output": [says("bad")],
    },
    "NeMo Customizer": {"prompt": "q", "chosen_response": "good", "rejected_response": "bad"},
    "NeMo Customizer, history": {"prompt": [user("q")], "chosen_response": "good", "rejected_response": "bad"},
    "UltraFeedback": {
        "instruction": "q",
        "completions": [{"response": "bad", "overall_score": 2.5}, {"response": "good", "overall_score": 8.0}],
    },
    "scores beside texts": {"prompt": "q", "generations": ["bad", "good"], "ratings": [2.5, 8]},
}


@pytest.mark.parametrize("name", ONE_PAIR)
def test_each_format_is_recognised_and_says_the_same(tmp_path, name):
    (pair,) = built(tmp_path, [ONE_PAIR[name]])
    assert [dict(message) for message in pair.context] == [user("q")]
    assert (pair.chosen, pair.rejected) == ("good", "bad")
    assert pair.provenance.record == pair.provenance.example_id == pair.set_id == "labels.jsonl:1"


@pytest.mark.parametrize(
    ("chosen", "rejected", "prompt", "ends"),
    [
        ("The sky is blue.", "The sky is green.", "The sky is", (" blue.", " green.")),
        ("The sky is blue", "The sky is black", "The sky is", (" blue", " black")),
        ("The sky is", "The sky was", "The sky", (" is", " was")),
        ("a b c", "a b", "a", (" b c", " b")),
        ("a b\nc", "a b\td", "a b", ("\nc", "\td")),
    ],
)
def test_an_implicit_prompt_of_texts_is_the_whole_words_in_common(tmp_path, chosen, rejected, prompt, ends):
    (pair,) = built(tmp_path, [{"chosen": chosen, "rejected": rejected}])
    assert (pair.context_text, (pair.chosen, pair.rejected)) == (prompt, ends)


def test_what_people_said_has_no_margin_and_scores_have_one(tmp_path):
    made = built(tmp_path, [trl(), trl(score_chosen=8, score_rejected=5.5)])
    assert [(pair.margin, pair.reward, pair.chosen_score, pair.rejected_score) for pair in made] == [
        (None, None, None, None),
        (2.5, 2.5, 8.0, 5.5),
    ]


def test_ids_tasks_and_other_columns_stay_what_they_are(tmp_path):
    rows = [
        trl(id="007", task_key="t1", reviewer="r1", seconds=3),
        trl(id=7, task_key=3),
        trl(id="", task_key=None, chosen=[says("007")]),
    ]
    first, second, third = (pair.provenance for pair in built(tmp_path, rows))
    assert (first.example_id, first.task_key, dict(first.metadata)) == ("007", "t1", {"reviewer": "r1", "seconds": 3})
    assert (second.example_id, second.task_key) == (7, "3")
    assert (third.example_id, third.task_key) == ("labels.jsonl:3", None)


# ------------------------------------------------------------------------------------------------- more than two completions


def test_ranks_become_pairs_by_the_rules_of_candidates(tmp_path):
    row = nemo((2, "c"), (0, "a"), (1, "b"), (1, "d"))
    assert texts(built(tmp_path, [row])) == [("a", "c"), ("a", "b"), ("a", "d"), ("b", "c"), ("d", "c")]
    assert reasons(built(tmp_path, [row])) == [("pair", DropReason.TIE)]
    assert texts(built(tmp_path, [row], exhaustive_pairs=False)) == [("a", "c")]
    made = built(tmp_path, [row], max_pairs_per_record=2)
    assert texts(made) == [("a", "c"), ("a", "b")]
    assert reasons(made).count(("pair", DropReason.MAX_PAIRS_PER_TURN)) == 3
    assert {pair.provenance.candidates for pair in made if isinstance(pair, PreferencePair)} == {4}


def test_scores_keep_their_margins(tmp_path):
    row = {"prompt": "q", "responses": ["a", "b", "c"], "scores": [0.3, 0.2, 0.25]}
    made = built(tmp_path, [row], min_score_diff=0.1)
    assert [(pair.chosen, pair.rejected, pytest.approx(pair.margin)) for pair in made if isinstance(pair, PreferencePair)] == [
        ("a", "b", 0.1)
    ]
    assert reasons(made) == [("pair", DropReason.SCORE_DIFF)] * 2


def test_an_unknown_score_is_left_out_and_never_zero(tmp_path):
    row = {"prompt": "q", "responses": ["a", "b", "c", "d", "e"], "scores": [-1, None, "N/A", -2, 10**400]}
    made = built(tmp_path, [row])
    assert texts(made) == [("a", "d")]
    assert reasons(made) == [("candidate", DropReason.NO_SCORE), *[("candidate", DropReason.SCORE_NOT_A_NUMBER)] * 2]


def test_no_preference_is_counted_and_no_fault(tmp_path):
    rows = [nemo((1, "a"), (1, "b")), nemo((0, "a"), (1, "a")), nemo((0, "a"), (1, "b"), context=[user("q"), says("a")])]
    assert reasons(built(tmp_path, rows)) == [
        ("pair", DropReason.TIE),
        ("pair", DropReason.IDENTICAL_TEXT),
        ("pair", DropReason.ANSWER_IN_CONTEXT),
    ]


# ------------------------------------------------------------------------------------------------------- several messages


def test_several_turns_of_context_are_fine(tmp_path):
    context = [{"role": "system", "content": "s"}, user("1"), says("2"), user("3")]
    (pair,) = built(tmp_path, [trl(prompt=context)])
    assert [dict(message) for message in pair.context] == context


def test_the_first_message_that_differs_is_the_decision(tmp_path):
    tool = {"role": "tool", "content": "42", "tool_call_id": "1"}
    row = trl(chosen=[CALL, tool, says("a"), user("?"), says("c")], rejected=[CALL, tool, says("b")])
    builder, loader = reading(tmp_path, [row, trl()], several_messages="first_difference")
    pair, plain = builder.build(loader.records())
    assert [message["role"] for message in pair.context] == ["user", "assistant", "tool"]
    assert (pair.chosen, pair.rejected) == ("a", "b")
    assert (plain.chosen, plain.rejected) == ("good", "bad")
    assert builder.notes() == [
        "the records were read as trl (found by looking at the first ones): chosen and rejected, with or without prompt",
        "1 records have completions of several messages: of each the first message in which they differ was compared, 1 later "
        "ones of the assistant were left out",
    ]


# ------------------------------------------------------------------------------------------------------------------ tables


@pytest.mark.parametrize("form", ["csv", "jsonl", "json", "parquet"])
def test_columns_of_any_table(tmp_path, form):
    rows = [{"nr": "007", "q": "1", "a": "02", "b": "3"}, {"nr": "08", "q": "4", "a": "5", "b": "6"}]
    content = "nr,q,a,b\n007,1,02,3\n08,4,5,6\n" if form == "csv" else rows
    columns = {"context": "q", "chosen": "a", "rejected": "b"}
    made = built(tmp_path, content, form, {"id_key": "nr"}, columns=columns)
    assert texts(made) == [("02", "3"), ("5", "6")]
    assert [pair.provenance.example_id for pair in made] == ["007", "08"]
    assert [pair.context_text for pair in made] == ["1", "4"]


def test_a_label_says_which_of_two_is_preferred(tmp_path):
    columns = {"context": "q", "first": "x", "second": "y", "label": "l"}
    columns |= {"prefers_first": ["A"], "prefers_second": [2], "ties": ["="]}
    made = built(tmp_path, "q,x,y,l,who\nw,1,2,A,r1\nw,3,4,2,r2\nw,5,6,=,r1\n", "csv", columns=columns)
    assert texts(made) == [("1", "2"), ("4", "3")]
    assert reasons(made) == [("pair", DropReason.TIE)]
    assert [dict(item.provenance.metadata) for item in made[:2]] == [{"who": "r1"}, {"who": "r2"}]


def test_scores_in_cells_are_numbers_and_an_empty_one_is_unknown(tmp_path):
    columns = {"context": "q", "chosen": "a", "rejected": "b", "chosen_score": "s", "rejected_score": "t"}
    made = built(tmp_path, "q,a,b,s,t\nw,1,2,0.5,0\nw,3,4,,0\n", "csv", columns=columns)
    assert [(pair.chosen, pair.margin) for pair in made if isinstance(pair, PreferencePair)] == [("1", 0.5)]
    assert reasons(made) == [("candidate", DropReason.NO_SCORE), ("turn", DropReason.SINGLE_CANDIDATE)]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"chosen": "a"}, "name chosen and rejected, or first"),
        ({}, "name chosen and rejected, or first"),
        ({"first": "a", "second": "b"}, "label and prefers_first and prefers_second missing"),
        ({"chosen": "a", "rejected": "b", "ties": ["="]}, "ties would be ignored"),
        ({"chosen": "a", "rejected": "b", "chosen_score": "s"}, "go together"),
        (
            {"first": "a", "second": "b", "label": "l", "prefers_first": [1], "prefers_second": ["1"]},
            "a value of the label means one thing, found twice: 1",
        ),
    ],
)
def test_columns_are_whole(keys, said):
    with pytest.raises(ValidationError, match=said):
        ColumnsConfig(context="q", **keys)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"format": "openai", "min_score_diff": 0.1}, "min_score_diff would be ignored"),
        ({"format": "trl", "columns": ColumnsConfig(context="q", chosen="a", rejected="b")}, "format would be ignored"),
    ],
)
def test_what_would_be_ignored_is_refused(keys, said):
    with pytest.raises(ValidationError, match=said):
        PreferenceDatasetBuilderConfig(dataset=JSONLDatasetConfig(file_path="x"), **keys)


# ----------------------------------------------------------------------------------------------------------------- streams


def test_records_are_read_as_a_stream():
    """Pairs come before the file has been read to its end; an endless one gives them too."""
    builder = PreferenceDatasetBuilderConfig(dataset=JSONLDatasetConfig(file_path="x"))
    read = []

    def endless():
        while True:
            read.append(1)
            yield Record(f"x:{len(read)}", trl())

    from nat_finetune.builders.preference import PreferenceDatasetBuilder

    pairs = PreferenceDatasetBuilder(builder).build(endless())
    assert [next(pairs).provenance.record for _ in range(200)][-1] == "x:200"
    assert len(read) == 200


def test_bad_records_are_skipped_with_their_place(tmp_path):
    made = built(tmp_path, [trl(), trl(chosen=[]), trl()], on_bad_record="skip")
    assert texts(made) == [("good", "bad")] * 2
    (drop,) = (item for item in made if isinstance(item, Dropped))
    assert (drop.reason, drop.detail) == (DropReason.BAD_RECORD, "labels.jsonl:2: 'chosen' is an empty list")


def test_the_filter_of_the_dataset_counts(tmp_path):
    rows = [trl(reviewer="r1"), trl(reviewer="r2")]
    assert len(built(tmp_path, rows, dataset={"filter": {"allowlist": {"field": {"reviewer": ["r2"]}}}})) == 1
    with pytest.raises(DataError, match="no row has the columns who"):
        built(tmp_path, rows, dataset={"filter": {"denylist": {"field": {"who": ["x"]}}}})
    with pytest.raises(DataError, match="no row has the columns nr"):
        built(tmp_path, rows, dataset={"id_key": "nr"})
