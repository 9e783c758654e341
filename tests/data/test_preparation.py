"""Duplicates, draws, splits and records of pairs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nat_finetune.data.keys import example_key
from nat_finetune.data.preparation import draw_pairs, record, split_by_example
from nat_finetune.data.selection import contradictions, deduplicate
from nat_finetune.errors import DataError
from nat_finetune.types import PreferencePair, Provenance, as_messages

SYSTEM = {"role": "system", "content": "S"}


def pair_of(context, chosen="c", rejected="r", example_id="e", calls=(None, None)):
    return PreferencePair(
        context=as_messages(context),
        context_text=context if isinstance(context, str) else None,
        chosen=chosen,
        rejected=rejected,
        provenance=Provenance(example_id, rollout_id="r", chosen_call=calls[0], rejected_call=calls[1]),
    )


def test_dedup_keeps_the_first_and_counts_what_is_preferred_both_ways():
    first = pair_of("p", "a", "b", "e1")
    again = pair_of([{"role": "user", "content": "p"}], "a", "b", "e2", calls=(4, 7))
    turned = pair_of("p", "b", "a", "e1")
    kept, (drop,) = deduplicate([first, again, turned])
    assert kept == [first, turned]
    assert (drop.what, drop.reason, drop.example_id, drop.call_seq, drop.rejected_call) == ("pair", "duplicate", "e2", 4, 7)
    assert contradictions(kept) == 1
    assert contradictions([first, pair_of("q", "b", "a")]) == 0


@given(st.lists(st.tuples(st.sampled_from("pq"), st.sampled_from(["ab", "ba", "ac"])), max_size=12))
def test_dedup_leaves_every_pair_once(rows):
    pairs = [pair_of(prompt, *texts) for prompt, texts in rows]
    kept, dropped = deduplicate(pairs)
    assert len(kept) + len(dropped) == len(pairs)
    assert [(p.context_text, p.chosen, p.rejected) for p in kept] == list(dict.fromkeys((c, *t) for c, t in rows))


@given(st.integers(0, 8), st.integers(1, 9), st.integers(0, 3))
def test_a_draw_is_exact_and_seeded(size, count, seed):
    pairs = [pair_of(f"p{i}", example_id=i // 3) for i in range(size)]
    kept, dropped = draw_pairs(pairs, count, seed=seed)
    assert (kept, dropped) == draw_pairs(pairs, count, seed=seed)
    assert len(kept) == min(size, count)
    assert len(kept) + len(dropped) == size
    assert kept == [pair for pair in pairs if pair in kept]


def test_seeds_draw_differently():
    pairs = [pair_of(f"p{i}", example_id=i) for i in range(30)]
    assert draw_pairs(pairs, 5, seed=1)[0] != draw_pairs(pairs, 5, seed=2)[0]
    assert split_by_example(pairs, seed=1) != split_by_example(pairs, seed=2)


@given(st.lists(st.one_of(st.integers(0, 3), st.sampled_from(["0", "1", "a"])), max_size=12), st.integers(0, 3))
def test_a_split_loses_no_pair_and_keeps_examples_whole(example_ids, seed):
    pairs = [pair_of(f"p{i}", example_id=example_id) for i, example_id in enumerate(example_ids)]
    training, validation = split_by_example(pairs, seed=seed)
    sides = [{example_key(pair.provenance.example_id) for pair in side} for side in (training, validation)]
    examples = len({example_key(example_id) for example_id in example_ids})
    assert not sides[0] & sides[1]
    assert len(sides[1]) == (max(1, round(0.2 * examples)) if examples > 1 else 0)
    assert sorted([*training, *validation], key=pairs.index) == pairs


QUESTION = [SYSTEM, {"role": "user", "content": "U"}]
TOOL = [SYSTEM, {"role": "tool", "content": "42", "tool_call_id": "1"}]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "U"}]}]
OTHER = [{"role": "assistant", "content": "x"}]


@pytest.mark.parametrize(
    ("context", "full", "last"),
    [
        ("P", [{"role": "user", "content": "P"}], "P"),
        (QUESTION, QUESTION, "U"),
        (TOOL, TOOL, TOOL),
        (PARTS, PARTS, PARTS),
        (OTHER, OTHER, OTHER),
        ([], [], []),
    ],
)
def test_records_with_and_without_history(context, full, last):
    answers = {"chosen_response": "c", "rejected_response": "r"}
    assert record(pair_of(context), use_full_message_history=True) == {"prompt": full, **answers}
    assert record(pair_of(context), use_full_message_history=False) == {"prompt": last, **answers}


@pytest.mark.parametrize("answer", ["c", "r"])
def test_an_answer_is_no_prompt(answer):
    pair = pair_of([SYSTEM, {"role": "assistant", "content": answer}])
    with pytest.raises(DataError, match=r"answer_in_context.*example 'e'"):
        record(pair, use_full_message_history=False)
    assert record(pair, use_full_message_history=True)["prompt"] == list(pair.context)
