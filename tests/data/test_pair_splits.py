"""Pairs on sides: contexts are compared, answers are not."""

from nat_finetune.data.pair_splits import context_text, pair_rows, split_pairs
from nat_finetune.types import PreferencePair, Provenance, as_messages

STORY = "The harbour pilot noticed at dawn that two of the mooring lines had chafed through and woke the crew."


def pair(context, chosen="c", rejected="r", *, record="f:1", task=None):
    return PreferencePair(as_messages(context), chosen, rejected, Provenance(record, record=record, task_key=task))


def contexts(count, first=0):
    return [f"alpha{i} beta{i} gamma{i} delta{i}" for i in range(first, first + count)]


def test_pairs_of_one_context_are_one_row_whatever_the_answers():
    pairs = [pair(STORY, "a", "b", record="f:1"), pair(STORY, "x", "y", record="f:2"), pair("other", record="f:3")]
    rows, of_pair = pair_rows(pairs)
    assert of_pair == [0, 0, 1]
    assert [row.text for row in rows] == [STORY, "other"]
    moved = pair_rows([pair("new first line", record="f:1"), *pairs])[0]
    assert {row.key for row in rows} <= {row.key for row in moved}  # a line that is put in moves no key


def test_contexts_are_what_their_messages_say():
    parts = [{"type": "text", "text": "seen"}, {"type": "image_url", "image_url": {"url": "x"}}]
    assert (
        context_text([{"role": "system", "content": "s"}, {"role": "user", "content": parts}, {"role": "assistant"}])
        == "s\nseen"
    )


def test_near_contexts_stay_together_and_equal_answers_do_not_matter():
    family = [pair(STORY), pair(STORY.replace("dawn", "noon")), pair(STORY.replace("crew", "cook"))]
    others = [pair(text, "the same answer", "the same other answer") for text in contexts(17)]
    made = split_pairs([*family, *others], validation=0.2, test=0.2, seed=3)
    assert (len(made.train), len(made.validation), len(made.test)) == (12, 4, 4)
    sides = [next(name for name in ("train", "validation", "test") if p in getattr(made, name)) for p in family]
    assert len(set(sides)) == 1


def test_pairs_keep_their_side_and_bridges_are_dropped_with_their_record():
    old = [pair(text) for text in contexts(20)]
    first = split_pairs(old, validation=0.3, seed=0)
    mine, other = first.train[0], first.validation[0]
    bridge = pair(f"{context_text(mine.context)} {context_text(other.context)}", record="f:99")
    second = split_pairs([bridge, *old], validation=0.3, seed=8, kept=first.sides)
    assert (second.train, second.validation) == (first.train, first.validation)
    assert [(drop.reason.value, drop.record) for drop in second.dropped] == [("bridges_split", "f:99")]


def test_task_keys_decide():
    pairs = [pair(f"{STORY} {i}", task=f"t{i % 4}") for i in range(16)]
    made = split_pairs(pairs, validation=0.25, seed=1)
    assert len({p.provenance.task_key for p in made.validation}) == 1
    assert len(made.validation) == 4
