"""Splits: what belongs together stays together, and where it was."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nat_finetune.data.manifest import Manifest, manifest_for, read_manifest
from nat_finetune.data.splits import Row, assign, clusters, leaks, ties
from nat_finetune.errors import DataError

STORY = "The harbour pilot noticed at dawn that two of the mooring lines had chafed through and woke the crew."


def rows_of(*given):
    """Rows of (text, task)."""
    return [Row(str(place), *row) for place, row in enumerate(given)]


def words(count, first=0):
    """Texts that have nothing in common."""
    return [f"alpha{i} beta{i} gamma{i} delta{i}" for i in range(first, first + count)]


def test_the_key_decides_where_there_is_one_then_the_input_then_near_duplicates():
    rows = rows_of(
        (STORY, "a"),
        (STORY.replace("dawn", "noon"), "b"),  # near, but the keys say that it is another task
        ("something else", "a"),
        (STORY.replace("crew", "cook"), None),
        ("something else", "c"),
    )
    assert {(tie.rows, tie.why.split(",")[0]) for tie in ties(rows)} == {
        ((0, 2), "the same task key 'a'"),
        ((2, 4), "the same input"),
        ((0, 3), "near-duplicates"),
        ((1, 3), "near-duplicates"),
    }
    assert [tie.rows for tie in ties(rows, by="task_key")] == [(0, 2), (2, 4)]


def test_clusters_are_chains_of_ties():
    rows = rows_of(("x", "a"), ("y", "a"), ("y", None), ("z", None))
    assert clusters(4, ties(rows, by="task_key")) == [0, 0, 0, 3]


@given(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=40), st.integers(0, 5))
def test_no_cluster_is_cut_and_shares_are_not_exceeded(tasks, seed):
    rows = rows_of(*[(f"text {place}", task) for place, task in enumerate(tasks)])
    found = ties(rows)
    made = assign(rows, found, validation=0.2, test=0.3, seed=seed)
    assert None not in made.sides
    assert leaks(made.sides, found) == []
    assert Counter(made.sides)["validation"] <= round(0.2 * len(rows))
    assert Counter(made.sides)["test"] <= round(0.3 * len(rows))


def test_a_split_is_seeded_and_does_not_depend_on_the_order():
    rows = rows_of(*[(text, None) for text in words(40)])
    first = assign(rows, [], validation=0.25, test=0.25, seed=1).sides
    assert Counter(first) == {"train": 20, "validation": 10, "test": 10}
    turned = assign(rows[::-1], [], validation=0.25, test=0.25, seed=1).sides
    assert turned[::-1] == first
    assert assign(rows, [], validation=0.25, test=0.25, seed=2).sides != first


def test_rows_keep_their_side_when_others_come():
    old = rows_of(*[(text, None) for text in words(20)])
    before = assign(old, [], validation=0.2, test=0.2, seed=0).sides
    kept = {row.key: side for row, side in zip(old, before, strict=True)}
    new = [Row(f"new {i}", text) for i, text in enumerate(words(20, first=20))]
    after = assign([*new, *old], [], validation=0.2, test=0.2, seed=5, kept=kept).sides
    assert after[20:] == before
    assert Counter(after) == {"train": 24, "validation": 8, "test": 8}  # new ones fill the sides up


def test_a_new_row_goes_where_its_like_is_and_a_bridge_is_left_out():
    rows = rows_of(("a", "A"), ("b", "B"), ("c", "A"), ("d", "B"), ("b", "A"), ("e", None))
    made = assign(rows, ties(rows), validation=0.5, test=0.0, seed=0, kept={"0": "train", "1": "validation"})
    assert made.sides[:5] == ("train", "validation", "train", "validation", None)
    ((place, leak),) = made.bridges
    assert (place, {leak.first, leak.second}) == (4, {0, 1})
    assert "'A'" in leak.why
    assert "the same input" in leak.why


def test_a_chain_of_new_rows_between_two_sides_is_cut():
    """0 (train) ~ 2 ~ 3 ~ 1 (validation): whichever is placed last would bridge."""
    rows = rows_of(("p", "X"), ("q", "Y"), ("r", "X"), ("r", "Y"))
    found = ties(rows)
    made = assign(rows, found, validation=0.5, test=0.0, seed=0, kept={"0": "train", "1": "validation"})
    assert made.sides.count(None) == 1
    assert leaks(made.sides, found) == []


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=30), st.integers(0, 12))
def test_whatever_comes_nothing_leaks(pairs, old):
    rows = rows_of(*[(f"text {text}", f"task {task}") for text, task in pairs])
    first = rows[:old]
    before = assign(first, ties(first), validation=0.3, test=0.2, seed=0).sides
    kept = {row.key: side for row, side in zip(first, before, strict=True) if side is not None}
    found = ties(rows)
    after = assign(rows, found, validation=0.3, test=0.2, seed=0, kept=kept)
    assert leaks(after.sides, found) == []
    assert after.sides[: len(first)] == before
    assert {place for place, side in enumerate(after.sides) if side is None} == {place for place, _ in after.bridges}


def test_leaks_name_the_held_out_row_once_and_the_earlier_side():
    rows = rows_of(("a", "A"), ("b", "A"), ("c", "A"), ("c", None))
    found = [(leak.first, leak.second) for leak in leaks(("train", "validation", "test", "test"), ties(rows))]
    assert found == [(0, 1), (0, 2)]  # the last row is like one of its own side only
    assert leaks(("train", "train", "train", "train"), ties(rows)) == []


@given(st.dictionaries(st.one_of(st.integers(), st.text()), st.sampled_from(["train", "validation", "test"])))
def test_manifests_come_back_equal(given):
    from nat_finetune.data.keys import example_key

    manifest = Manifest({example_key(row): side for row, side in given.items()})
    assert Manifest.from_dict(manifest.to_dict()).sides == manifest.sides


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no split"),
        ("[]", "found list"),
        ('{"version": 2}', "expected {version: 1"),
        ('{"version": 1, "train": [1], "validation": [1], "test": []}', "the id 1 is both in train and in validation"),
        ('{"version": 1, "train": [1.5], "validation": [], "test": []}', "expected a list of ids, found 1.5"),
        ('{"version": 1, "train": 7, "validation": [], "test": []}', "train: expected a list of ids, found 7"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_manifest_is_said(tmp_path, text, message):
    path = tmp_path / "split.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=r"finetuning\.split\.manifest") as caught:
        read_manifest(path)
    assert message in str(caught.value)


def test_a_missing_manifest_is_said(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        read_manifest(tmp_path / "none.json")


def test_a_manifest_of_another_dataset_is_refused(tmp_path):
    path = tmp_path / "split.json"
    path.write_text('{"version": 1, "train": ["1", "2"], "validation": [], "test": ["3"]}', encoding="utf-8")
    assert manifest_for(path, ['"3"', '"4"']).sides['"3"'] == "test"
    with pytest.raises(DataError, match="knows none of the 3 examples"):
        manifest_for(path, ["1", "2", "3"])
