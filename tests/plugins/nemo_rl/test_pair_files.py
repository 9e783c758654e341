import json
from dataclasses import replace

import pytest
from nat_finetune_plugins.nemo_rl.pair_files import PairRules, pair_files

from nat_finetune.errors import DataError, NoTrainableSignal
from nat_finetune.testing.items import pair
from nat_finetune.types import DropReason
from tests.plugins.nemo_rl import rules
from tests.plugins.nemo_rl.made import pairs

RULES = PairRules(max_length=100)


def words(context, answer):
    return sum(len(message["content"].split()) for message in context) + len(answer.split())


def test_rows_are_as_the_dataset_class_reads_them():
    made = pair_files(pairs(2), RULES, None)
    first = json.loads(made.train[0])
    assert first == {
        "context": [{"role": "user", "content": "move 0"}],
        "completions": [
            {"rank": 0, "completion": [{"role": "assistant", "content": "take 0"}]},
            {"rank": 1, "completion": [{"role": "assistant", "content": "give up"}]},
        ],
    }
    for row in made.train:
        rules.preprocess(json.loads(row))


def test_too_long_pairs_are_dropped_and_counted_at_the_limit_already():
    long = pair("a b c d e f", "no", text="move on", example=9)  # 8 words
    made = pair_files([*pairs(3), long], PairRules(max_length=8), words)
    assert len(made.train) == 3
    assert [(drop.reason, drop.detail, drop.example_id) for drop in made.dropped] == [
        (DropReason.TOO_LONG, "8 tokens, max_length is 8", 9)
    ]
    assert len(pair_files([*pairs(3), long], PairRules(max_length=9), words).train) == 4


def test_too_long_fails_where_the_config_says_so():
    with pytest.raises(DataError, match="example 0 is too long: 4 tokens, max_length is 3"):
        pair_files(pairs(1), PairRules(max_length=3, fail_on_too_long=True), words)


def test_nothing_left_is_an_outcome():
    with pytest.raises(NoTrainableSignal, match="2 too_long"):
        pair_files(pairs(2), PairRules(max_length=2), words)


def test_what_a_chat_template_would_not_show_is_left_out():
    answered = replace(
        pairs(1)[0],
        context=({"role": "user", "content": "?"}, {"role": "tool", "content": "42", "tool_call_id": "a"}),
    )
    made = pair_files([answered, *pairs(2)], RULES, None)
    assert len(made.train) == 2
    assert made.dropped[0].reason is DropReason.NOT_IN_FORMAT
    assert "tool_call_id" in made.dropped[0].detail


def in_sets():
    """Two sets: one of three pairs, one of one; every set weighs the same."""
    one = [replace(pair(f"a{n}", "z", example=1), set_id="s1", weight=1 / 3) for n in range(3)]
    return [*one, replace(pair("b", "z", text="other", example=2), set_id="s2", weight=1.0)]


def test_one_pair_stands_for_a_candidate_set_that_weighs_as_one():
    made = pair_files(in_sets(), RULES, None)
    assert len(made.train) == 2
    assert [drop.reason for drop in made.dropped] == [DropReason.ONE_OF_ITS_SET] * 2
    assert made.train == pair_files(in_sets(), RULES, None).train
    others = {pair_files(in_sets(), replace(RULES, seed=seed), None).train for seed in range(12)}
    assert len(others) == 3  # each of the three is drawn by some seed


def test_weights_are_refused_where_the_config_says_so():
    with pytest.raises(DataError, match="no place for weights"):
        pair_files(in_sets(), PairRules(100, refuse_weights=True), None)


def test_agreeing_reviewers_are_written_as_often_as_they_agree():
    judged = [replace(pair("a", "z", example=1), weight=3.0), replace(pair("b", "z", text="o", example=2), weight=1.0)]
    made = pair_files(judged, RULES, None)
    assert [json.loads(row)["completions"][0]["completion"][0]["content"] for row in made.train] == ["a", "a", "a", "b"]


def test_weights_that_no_number_of_rows_can_say():
    judged = [replace(pair("a", "z"), weight=1.7), replace(pair("b", "z", text="o"), weight=1.0)]
    with pytest.raises(DataError, match=r"from 1 to 1\.7"):
        pair_files(judged, RULES, None)


def test_no_context_and_no_example_is_on_both_sides():
    many = [pair(f"a{n}", "z", text=f"context {n // 3}", example=n // 2) for n in range(60)]
    made = pair_files(many, PairRules(100, validation_share=0.25, seed=3), None)
    assert 0 < len(made.validation) <= 15
    sides = [{json.loads(row)["context"][0]["content"] for row in rows} for rows in (made.train, made.validation)]
    assert not sides[0] & sides[1]
    by_row = {json.loads(row)["completions"][0]["completion"][0]["content"]: "v" for row in made.validation}
    examples = [{p.provenance.example_id for p in many if (p.chosen in by_row) is held} for held in (True, False)]
    assert not examples[0] & examples[1]
