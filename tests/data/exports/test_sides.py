"""Nothing stands on both sides."""

import numpy as np
import pytest

from nat_finetune.data.exports.sides import NONE, TEST, TRAIN, VALIDATION, drawn_sides, given_sides, joined, without_shared


def column(*values):
    return np.array(values, np.uint64)


def test_contexts_and_near_duplicates_join_clusters():
    # Items 0 and 1 share a context, 1 and 2 a cluster, 3 and 4 have contexts that are near-duplicates, 5 is alone.
    cluster, text = column(10, 11, 11, 13, 14, 15), column(20, 20, 22, 23, 24, 25)
    made = joined(cluster, text, [(23, 24)]).tolist()
    assert made[0] == made[1] == made[2]
    assert made[3] == made[4]
    assert len(set(made)) == 3


def test_whole_clusters_go_to_validation_up_to_the_share():
    cluster = np.repeat(np.random.default_rng(0).integers(1, 2**63, 100, np.uint64), 5)
    kept = np.ones(500, np.bool_)
    sides = drawn_sides(cluster, kept, 0.2, seed=1)
    assert (sides == VALIDATION).sum() == 100
    assert ((sides.reshape(100, 5) == VALIDATION).sum(axis=1) % 5 == 0).all()
    assert (drawn_sides(cluster, kept, 0.2, seed=1) == sides).all()
    assert (drawn_sides(cluster, kept, 0.2, seed=2) != sides).any()
    kept[:5] = False
    assert (drawn_sides(cluster, kept, 0.2, seed=1)[:5] == NONE).all()


def test_sides_depend_on_what_rows_are_and_not_on_their_order():
    cluster = np.random.default_rng(0).integers(1, 2**63, 100, np.uint64)
    sides = drawn_sides(cluster, np.ones(100, np.bool_), 0.3, seed=1)
    assert (drawn_sides(cluster[::-1], np.ones(100, np.bool_), 0.3, seed=1) == sides[::-1]).all()


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.05, 0), (0.1, 10), (0.19, 10)])
def test_a_cluster_that_is_larger_than_the_share_is_trained(share, count):
    cluster = np.repeat(column(*range(1, 11)), 10)
    assert (drawn_sides(cluster, np.ones(100, np.bool_), share, seed=0) == VALIDATION).sum() == count


def test_a_manifest_gives_sides_and_what_it_does_not_know_is_counted():
    sides, unknown = given_sides(column(1, 2, 3, 4, 4), np.array([1, 1, 1, 1, 0], np.bool_), {1: TRAIN, 2: VALIDATION, 3: TEST})
    assert sides.tolist() == [TRAIN, VALIDATION, TEST, NONE, NONE]
    assert unknown == 1


def test_shared_contexts_leave_validation_and_those_of_the_test_leave_both():
    sides = np.array([TRAIN, VALIDATION, VALIDATION, TEST, TRAIN, VALIDATION], np.int8)
    assert without_shared(sides, column(1, 1, 2, 3, 3, 3)) == 3
    assert sides.tolist() == [TRAIN, NONE, VALIDATION, TEST, NONE, NONE]
