"""What of an unfinished collection counts."""

from nat_finetune.collecting import Leftovers

from tests.data.rollouts import rollout


def leftovers(*ids):
    left = Leftovers()
    for name in ids:
        left.add(0, rollout(rollout_id=name))
    return left


def ids(rollouts):
    return [found.rollout_id for found in rollouts]


def test_finished_rollouts_are_taken_with_their_earlier_attempts():
    left = leftovers("a~1", "a", "b~1")
    assert ids(left.take(0, {"a", "b"})) == ["a~1", "a"]
    assert ids(left.superseded()) == ["b~1"]
    assert left.superseded() == []


def test_rollouts_of_further_examples_wait_until_they_are_asked_for():
    left = leftovers("a", "more~1", "more", "other")
    assert ids(left.take(0, {"a"})) == ["a"]
    assert left.superseded() == []
    assert ids(left.take(0, {"more"})) == ["more~1", "more"]
    left.discard(0)
    assert ids(left.superseded()) == ["other"]


def test_a_collection_is_cut_off_where_rollouts_are_missing_or_more_were_begun():
    assert not leftovers().is_cut_off(0, {"a", "b"})
    assert not leftovers("a~1", "a", "b").is_cut_off(0, {"a", "b"})
    assert leftovers("a").is_cut_off(0, {"a", "b"})
    assert leftovers("a~1").is_cut_off(0, {"a"})
    assert leftovers("a", "b", "more").is_cut_off(0, {"a", "b"})


def test_a_restart_in_the_log_discards_what_was_before():
    left = leftovers("a", "b")
    left.add(0, None)
    left.add(0, rollout(rollout_id="a"))
    assert ids(left.superseded()) == ["a", "b"]
    assert ids(left.take(0, {"a", "b"})) == ["a"]
