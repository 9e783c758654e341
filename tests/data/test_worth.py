"""What pairs are worth: what is independent, and whether length alone explains it."""

import pytest

from nat_finetune.data.selection import SelectionRules, pair_cluster, select_pairs
from nat_finetune.data.worth import length_warning, lengths_of, worth_of
from nat_finetune.types import PreferencePair, Provenance, as_messages


def pair(context, chosen, rejected, *, set_id=None, record=None, margin=None, candidates=None):
    where = Provenance("e", record=record, candidates=candidates)
    return PreferencePair(as_messages(context), chosen, rejected, where, margin=margin, set_id=set_id)


def scored_turns(count):
    """Three candidates with scores 0.9, 0.7, 0.5 in every turn."""
    return [
        pair(f"turn {t}", chosen, rejected, set_id=str(t), margin=0.2, candidates=3)
        for t in range(count)
        for chosen, rejected in (("a", "b"), ("b", "c"), ("a", "c"))
    ]


def test_scored_candidates_are_no_judgments():
    worth = worth_of(select_pairs(scored_turns(500), SelectionRules(), seed=0), seed=0)
    found = (worth.pairs, worth.contexts, worth.candidate_sets, worth.candidates, worth.judgments)
    assert found == (1500, 500, 500, 1500, 0)


def test_people_who_agree_are_counted_each():
    pairs = [pair("p", "a", "b", record=f"f:{i}", set_id=f"f:{i}") for i in range(3)] + [pair("q", "a", "b", record="f:9")]
    worth = worth_of(select_pairs(pairs, SelectionRules(deduplicate=True), seed=0), seed=0)
    assert (worth.pairs, worth.contexts, worth.candidate_sets, worth.judgments) == (2, 2, 0, 4)


def test_ranks_of_one_record_are_one_judgment():
    pairs = [pair("p", *texts, record="f:1", set_id="f:1", candidates=3) for texts in (("a", "b"), ("b", "c"), ("a", "c"))]
    worth = worth_of(select_pairs(pairs, SelectionRules(), seed=0), seed=0)
    assert (worth.pairs, worth.judgments) == (3, 1)


def test_lengths_are_over_sets_not_pairs():
    lengths = lengths_of(scored_turns(20), seed=0)
    assert lengths.longer_chosen.n == 20
    assert lengths.longer_chosen.mean == 0.5  # ties count half
    same_context = [pair("p", f"a{i}", "b", record=f"f:{i}") for i in range(9)]
    assert len({pair_cluster(p) for p in same_context}) == 1


@pytest.mark.parametrize(
    ("chosen", "rejected", "which"), [("a long answer", "no", "longer"), ("no", "a long answer", "shorter")]
)
def test_length_that_predicts_the_label_is_said_with_accuracy_and_interval(chosen, rejected, which):
    pairs = [pair(f"q{i}", chosen, rejected, record=f"f:{i}") for i in range(80)]
    pairs += [pair(f"q{i}", rejected, chosen, record=f"f:{i}") for i in range(80, 100)]
    warning = length_warning(lengths_of(pairs, seed=0))
    assert f"the {which} answer is the chosen one in 80.0% of the pairs [" in warning
    low, high = (float(text.rstrip("%")) for text in warning.split("[")[1].split("]")[0].split(", "))
    assert 68 < low < 74  # by the binomial: 80 % of 100 is 71 to 87
    assert 85 < high < 90
    assert "(median 13 against 2 characters)" in warning or "(median 2 against 13 characters)" in warning


def test_no_warning_where_length_says_little():
    pairs = [pair(f"q{i}", "a long answer", "no", record=f"f:{i}") for i in range(60)]
    pairs += [pair(f"q{i}", "no", "a long answer", record=f"f:{i}") for i in range(60, 100)]
    assert length_warning(lengths_of(pairs, seed=0)) is None
    few = [pair(f"q{i}", "a long answer", "no", record=f"f:{i}") for i in range(4)]
    assert length_warning(lengths_of(few, seed=0)) is None  # four that agree are no evidence
