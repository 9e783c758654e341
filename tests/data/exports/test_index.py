"""The rules over digests choose what the rules over pairs choose."""

import random
from collections import Counter
from itertools import product

import numpy as np
import pytest

from nat_finetune.data.exports.index import ItemIndex, digest
from nat_finetune.data.seeds import derive_seed
from nat_finetune.data.selection import SelectionRules, is_judgment, select_pairs
from nat_finetune.errors import DataError
from nat_finetune.types import DropReason, PreferencePair, Provenance

SEED = 3


def pair(context, chosen, rejected, *, set_id=None, record=None):
    """A reviewer's where it has a record, a scorer's otherwise."""
    margin = None if record else 0.5
    where = Provenance("e", record=record)
    return PreferencePair(({"role": "user", "content": context},), chosen, rejected, where, margin=margin, set_id=set_id)


def indexed(pairs):
    index = ItemIndex()
    for p in pairs:
        index.add(p.context, p.chosen, p.rejected, cluster=None, set_id=p.set_id, judged=is_judgment(p), weight=p.weight)
    return index


def drawn(seed, judged):
    """Pairs with many duplicates, contradictions and shared sets."""
    generator = random.Random(seed)
    pairs = []
    for place in range(60):
        said = generator.sample("abc", 2)
        record = f"f:{place}" if generator.random() < judged else None
        pairs.append(pair(generator.choice("xyz"), *said, set_id=record or f"s{generator.randrange(25)}", record=record))
    return pairs


@pytest.mark.parametrize(
    ("seed", "judged", "deduplicate", "contradiction", "most"),
    [(0, j, d, c, m) for j, d, c, m in product((0.0, 0.5, 1.0), (True, False), (None, "keep", "drop"), (None, 4))],
)
def test_what_is_kept_is_what_a_run_trains(seed, judged, deduplicate, contradiction, most):
    pairs = drawn(seed, judged)
    rules = SelectionRules(deduplicate=deduplicate, on_contradiction=contradiction, max_pairs=most, weighting="pair")
    selected = select_pairs(pairs, rules, seed=derive_seed(SEED, "max_pairs"))
    kept = indexed(pairs).select(rules, "sample", seed=SEED)
    rows = Counter((p.context[0]["content"], p.chosen, p.rejected) for p, there in zip(pairs, kept.mask, strict=True) if there)
    # A merged judgment is a row for each person who said it: the rows' numbers are the run's weights.
    trained = Counter()
    for p in selected.pairs:
        trained[p.context[0]["content"], p.chosen, p.rejected] += 1 + len(p.provenance.further_records)
    assert rows == trained
    assert kept.contradictions == selected.contradictions
    assert kept.repeated == sum(len(p.provenance.further_records) for p in selected.pairs)
    run = Counter(drop.reason for drop in selected.dropped)
    assert kept.dropped[DropReason.CONTRADICTION] == run[DropReason.CONTRADICTION]
    assert kept.dropped[DropReason.DUPLICATE] == run[DropReason.DUPLICATE]
    assert int(kept.mask.sum()) + kept.dropped.total() == len(pairs)


def test_one_pair_stands_for_its_set_and_each_is_drawn_as_often():
    pairs = [pair(f"c{number}", str(one), "-", set_id=f"s{number}") for number in range(3000) for one in range(3)]
    kept = indexed(pairs).select(SelectionRules(), "sample", seed=SEED)
    assert kept.weighting == "set"
    assert kept.sets == kept.mask.sum() == 3000
    assert (kept.mask.reshape(3000, 3).sum(axis=1) == 1).all()
    assert kept.mask.reshape(3000, 3).sum(axis=0) == pytest.approx([1000] * 3, abs=100)
    again, other = (indexed(pairs).select(SelectionRules(), "sample", seed=seed).mask for seed in (SEED, SEED + 1))
    assert (again == kept.mask).all()
    assert (other != kept.mask).any()


def test_pairs_of_a_set_need_not_be_neighbours():
    pairs = [pair("x", str(number), "-", set_id=f"s{number % 5}") for number in range(20)]
    kept = indexed(pairs).select(SelectionRules(), "sample", seed=SEED)
    assert sorted(int(place) % 5 for place in np.flatnonzero(kept.mask)) == [0, 1, 2, 3, 4]


def test_the_best_is_the_first_of_its_set():
    pairs = [pair("x", "a", "c", set_id="s"), pair("x", "a", "b", set_id="s"), pair("x", "b", "c", set_id="s")]
    assert indexed(pairs).select(SelectionRules(), "refuse", seed=SEED, best=True).mask.tolist() == [True, False, False]


def test_pairs_of_no_set_all_stay():
    kept = indexed([pair("x", "a", "b"), pair("y", "a", "b")]).select(SelectionRules(), "refuse", seed=SEED)
    assert kept.mask.all()
    assert kept.weighting == "set"


def test_sets_of_several_pairs_are_refused_where_asked():
    pairs = [pair("x", "a", "c", set_id="s"), pair("x", "b", "c", set_id="s"), pair("y", "b", "c", set_id="t")]
    with pytest.raises(DataError, match=r"1 of 3 pairs share their candidate set .* --pair-weights sample"):
        indexed(pairs).select(SelectionRules(), "refuse", seed=SEED)
    assert indexed(pairs[1:]).select(SelectionRules(), "refuse", seed=SEED).mask.all()
    assert indexed(pairs).select(SelectionRules(weighting="pair"), "refuse", seed=SEED).mask.all()


def test_weights_that_a_builder_gave_are_refused():
    index = indexed([pair("x", "a", "c")])
    index.add(({"role": "user", "content": "y"},), "a", "b", cluster=None, weight=0.5)
    with pytest.raises(DataError, match=r"weights from 0\.5 to 1"):
        index.select(SelectionRules(), "sample", seed=SEED)


def test_a_completion_is_demonstrated_once_in_its_context():
    index = indexed([pair("x", "a", "b"), pair("x", "a", "c"), pair("y", "a", "c"), pair("x", "c", "b")])
    assert index.first_of_each(np.array([True, True, True, True])).tolist() == [True, False, True, True]
    assert index.first_of_each(np.array([False, True, True, True])).tolist() == [False, True, True, True]


def test_a_digest_is_of_any_text_and_never_zero():
    assert digest("é\ud800") != digest("é") != 0
