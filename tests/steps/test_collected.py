"""What of an unfinished collection counts."""

from dataclasses import replace

from nat_finetune.runstore import RunStore
from nat_finetune.steps.collected import Collected
from nat_finetune.types import Cause, Failure
from tests.data.rollouts import rollout


def log(tmp_path, *names):
    store = RunStore.create(tmp_path / "run")
    for name in names:
        store.restart_step(0) if name is None else store.add_rollout(0, made(name))
    collected = Collected(store, max_failure_rate=0.4)
    collected.find(0)
    return collected


def made(name):
    """A rollout; one that failed where the name ends in `!`."""
    whole = rollout(rollout_id=name.rstrip("!"))
    cause = {"stage": "tool", "cause": Cause.INFRASTRUCTURE, "error_type": "OSError", "message": "no connection"}
    failure = Failure(rollout_id=whole.rollout_id, seq=0, path=(), start=0.0, end=1.0, **cause)
    return replace(whole, events=(failure,), failure=failure) if name.endswith("!") else whole


def ids(rollouts):
    return [found.rollout_id for found in rollouts]


def test_finished_rollouts_are_taken_with_their_earlier_attempts(tmp_path):
    collected = log(tmp_path, "a~1", "a", "b~1")
    assert ids(collected.unfinished(0, {"a", "b"})) == ["a~1", "a"]
    assert ids(collected.superseded) == ["b~1"]


def test_rollouts_of_further_examples_wait_until_they_are_asked_for(tmp_path):
    collected = log(tmp_path, "a", "more~1", "more", "other")
    assert ids(collected.unfinished(0, {"a"})) == ["a"]
    assert collected.superseded == []
    assert ids(collected.unfinished(0, {"more"})) == ["more~1", "more"]
    collected.discard(0)
    assert ids(collected.superseded) == ["other"]


def test_only_a_whole_collection_is_not_collected_anew(tmp_path):
    for number, (names, whole) in enumerate(
        [
            (["a~1", "a", "b"], True),
            (["a"], False),
            (["a~1"], False),
            (["a", "b", "more"], False),  # it was cut off among the further examples, or after them
        ]
    ):
        (tmp_path / str(number)).mkdir()
        collected = log(tmp_path / str(number), *names)
        collected.collect_anew(0, {"a", "b"})
        assert ids(collected.unfinished(0, {"a", "b"})) == (names if whole else [])
        assert ids(collected.superseded) == ([] if whole else names)


def test_a_restart_in_the_log_discards_what_was_before(tmp_path):
    collected = log(tmp_path, "a", "b", None, "a")
    assert ids(collected.superseded) == ["a", "b"]
    assert ids(collected.unfinished(0, {"a", "b"})) == ["a"]


def test_too_many_failures_are_run_anew_and_few_are_kept(tmp_path):
    collected = log(tmp_path, "a~1", "a!", "b!", "c")
    assert ids(collected.unfinished(0, {"a", "b", "c"})) == ["c"]
    assert ids(collected.superseded) == ["a~1", "a", "b"]
    (tmp_path / "few").mkdir()
    collected = log(tmp_path / "few", "a!", "b", "c")
    assert ids(collected.unfinished(0, {"a", "b", "c"})) == ["a", "b", "c"]
    assert collected.superseded == []


def test_of_a_rollout_that_was_run_anew_the_last_one_counts(tmp_path):
    collected = log(tmp_path, "a!", "b!", "c", "a", "b")
    kept = collected.unfinished(0, {"a", "b", "c"})
    assert ids(kept) == ["a", "b", "c"]
    assert not any(rollout.failure for rollout in kept)
    assert ids(collected.superseded) == ["a", "b"]
    assert [rollout.failure for rollout in collected.committed(0)] == [None] * 3
