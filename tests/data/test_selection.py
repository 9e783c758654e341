"""Which pairs are trained, and how much each counts."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nat_finetune.data.selection import SelectionRules, contradictions, deduplicate, judgments, select_pairs, weighted
from nat_finetune.types import PreferencePair, Provenance, as_messages


def scored(context, chosen="c", rejected="r", *, set_id="s", margin=0.2):
    """A pair of scored candidates."""
    return PreferencePair(
        as_messages(context), chosen, rejected, Provenance("e", rollout_id="r", candidates=3), margin=margin, set_id=set_id
    )


def judged(context, chosen="c", rejected="r", *, record="labels.jsonl:1", weight=1.0):
    """A person's label."""
    return PreferencePair(as_messages(context), chosen, rejected, Provenance("e", record=record), weight=weight, set_id=record)


def reasons(dropped):
    return [drop.reason.value for drop in dropped]


def test_a_set_of_ten_pairs_weighs_as_much_as_a_set_of_one():
    many = [scored("p", f"c{i}", f"r{i}", set_id="ten") for i in range(10)]
    one = scored("q", set_id="one")
    by_set = weighted([*many, one], "set")
    assert math.fsum(pair.weight for pair in by_set[:10]) == pytest.approx(by_set[10].weight)
    assert math.fsum(pair.weight for pair in by_set) == pytest.approx(11)  # the constant: an update stays as large as it was
    assert [pair.weight for pair in weighted([*many, one], "pair")] == [1.0] * 11


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6))
def test_set_weights_are_one_over_the_size_of_the_set_times_a_constant(sizes):
    pairs = [scored("p", f"c{i}", "r", set_id=f"s{s}") for s, size in enumerate(sizes) for i in range(size)]
    constants = {
        round(pair.weight * size, 9)
        for pair, size in zip(weighted(pairs, "set"), [n for n in sizes for _ in range(n)], strict=True)
    }
    assert constants == {round(sum(sizes) / len(sizes), 9)}


def test_weights_are_by_set_for_scores_and_by_pair_for_people():
    scores = [scored("p", f"c{i}", "r", set_id="a") for i in range(3)] + [scored("q", set_id="b")]
    labels = [replace(judged("p", f"c{i}", "r"), set_id="a") for i in range(3)] + [judged("q")]
    by_default = select_pairs(scores, SelectionRules(), seed=0)
    assert by_default.weighting == "set"
    assert [pair.weight for pair in by_default.pairs] == pytest.approx([2 / 3, 2 / 3, 2 / 3, 2])
    people = select_pairs(labels, SelectionRules(), seed=0)
    assert people.weighting == "pair"
    assert [pair.weight for pair in people.pairs] == [1.0] * 4
    asked = select_pairs(labels, SelectionRules(weighting="set"), seed=0)
    assert [pair.weight for pair in asked.pairs] == pytest.approx([2 / 3, 2 / 3, 2 / 3, 2])


def test_weights_go_by_the_pairs_that_are_left():
    pairs = [scored("p", "a", "b", set_id="1"), scored("p", "a", "b", set_id="2"), scored("p", "a", "c", set_id="2")]
    selected = select_pairs(pairs, SelectionRules(deduplicate=True), seed=0)
    assert [pair.weight for pair in selected.pairs] == [1.0, 1.0]
    assert reasons(selected.dropped) == ["duplicate"]


def test_two_people_who_agree_are_two_judgments():
    pairs = [judged("p", record="f:1"), judged("p", record="f:2"), judged("q", record="f:3"), judged("p", record="f:4")]
    selected = select_pairs(pairs, SelectionRules(deduplicate=True), seed=0)
    first, second = selected.pairs
    assert judgments(first) == ("f:1", "f:2", "f:4")
    assert judgments(second) == ("f:3",)
    assert first.weight == pytest.approx(3 * second.weight)
    assert (first.weight + second.weight) / 2 == pytest.approx(1.0)
    assert [(d.reason.value, d.record, d.detail) for d in selected.dropped] == [
        ("merged", "f:2", "says the same as f:1"),
        ("merged", "f:4", "says the same as f:1"),
    ]


def test_a_scorer_that_is_asked_twice_is_one():
    kept, dropped = deduplicate([scored("p"), scored("p", set_id="t")])
    assert [pair.weight for pair in kept] == [1.0]
    assert reasons(dropped) == ["duplicate"]
    assert judgments(kept[0]) == ()


def test_weights_of_records_survive():
    selected = select_pairs([judged("p", weight=4.0), judged("q", weight=2.0)], SelectionRules(), seed=0)
    assert [pair.weight for pair in selected.pairs] == [4.0, 2.0]


@pytest.mark.parametrize(
    ("make", "rule", "kept"),
    [(judged, None, 3), (judged, "keep", 3), (judged, "drop", 1), (scored, None, 1), (scored, "keep", 3), (scored, "drop", 1)],
)
def test_contradictions_are_counted_and_kept_or_dropped(make, rule, kept):
    pairs = [make("p", "a", "b"), make("p", "b", "a"), make("q", "b", "a")]
    selected = select_pairs(pairs, SelectionRules(on_contradiction=rule), seed=0)
    assert selected.contradictions == contradictions(pairs) == 1
    assert len(selected.pairs) == kept
    assert reasons(selected.dropped) == ["contradiction"] * (3 - kept)


@pytest.mark.parametrize("answer", ["c", "r"])
def test_an_answer_that_ends_its_own_context_is_never_trained(answer):
    pair = judged([{"role": "user", "content": "u"}, {"role": "assistant", "content": answer}])
    selected = select_pairs([pair, judged("q")], SelectionRules(), seed=0)
    assert [p.context for p in selected.pairs] == [as_messages("q")]
    assert [(d.reason.value, d.record) for d in selected.dropped] == [("answer_in_context", "labels.jsonl:1")]


def test_nothing_in_nothing_out():
    selected = select_pairs([], SelectionRules(deduplicate=True, max_pairs=1), seed=0)
    assert (selected.pairs, selected.dropped, selected.contradictions) == ([], [], 0)
