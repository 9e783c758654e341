from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from nat_finetune.data.batches import Rows
from nat_finetune.data.layout import seen
from nat_finetune.errors import DataError

CPU = torch.device("cpu")


def rows_of(*rows: str) -> Rows:
    """`12 3[45]6`: digits are tokens, those in brackets are trained."""
    ids, masks = [], []
    for text in rows:
        inside, row, mask = False, [], []
        for sign in text.replace(" ", ""):
            if sign in "[]":
                inside = sign == "["
            else:
                row.append(int(sign))
                mask.append(int(inside))
        ids.append(row)
        masks.append(mask)
    return Rows.of(ids, masks)


def singles(rows: Rows) -> list[tuple[int]]:
    return [(row,) for row in range(len(rows))]


def assert_reads_its_own_tokens(rows: Rows, plan) -> None:
    """What each token of a row sees in the micro-batch is the row itself up to this token, at the row's own positions."""
    batch = rows.micro_batch(plan, CPU)
    size = batch.input_ids_L_T.shape[1]
    sees = torch.ones(size, size).tril().bool().expand(len(batch.input_ids_L_T), -1, -1)
    if batch.parts is not None:
        sees = torch.from_numpy(seen(batch.parts, batch.input_ids_L_T.shape))
        covered = torch.zeros(batch.input_ids_L_T.numel(), dtype=torch.int)
        for part in batch.parts:
            covered[part.begin : part.end] += part.causal
        assert covered.max() == 1
        assert covered.sum() == covered.numel() - (0 if plan.packed else padding(batch, plan))
        assert sees.sum() - (0 if plan.packed else padding(batch, plan)) == sum(
            (p.end - p.begin) * (p.behind - p.first) - hidden(p) for p in batch.parts
        )
    for row, places in zip(plan.rows, batch.places_R_T.tolist(), strict=True):
        start, end = rows.starts[row], rows.starts[row + 1]
        ids, last = rows.token_ids_N[start:end].tolist(), int(rows.loss_mask_N[start:end].nonzero()[0][-1])
        for position, place in enumerate(places[:last]):
            sequence, token = divmod(place, size)
            visible = sees[sequence, token].nonzero()[:, 0].tolist()
            seen_at, seen_ids = batch.positions_L_T[sequence, visible].tolist(), batch.input_ids_L_T[sequence, visible].tolist()
            by_position = sorted(zip(seen_at, seen_ids, strict=True))
            assert by_position == list(enumerate(ids[: position + 1]))


def hidden(part) -> int:
    """Token pairs of a causal part that its mask hides."""
    size = part.end - part.begin
    return size * (size - 1) // 2 if part.causal else 0


def padding(batch, plan) -> int:
    return batch.input_ids_L_T.numel() - sum(tree.length for tree in plan.trees)


def test_padding_is_on_the_right_and_neither_trained_nor_valued():
    rows = rows_of("1[23]", "45[6]78")
    rows.add_column("value", [[0.1, 0.2, 0.3], [1, 2, 3, 4, 5]])
    [plan] = rows.plans(singles(rows), max_tokens=100)
    batch = rows.micro_batch(plan, CPU)
    assert batch.token_ids_R_T.tolist() == [[1, 2, 3, 0, 0], [4, 5, 6, 7, 8]]
    assert batch.loss_mask_R_T.tolist() == [[False, True, True, False, False], [False, False, True, False, False]]
    assert torch.allclose(batch.columns["value"], torch.tensor([[0.1, 0.2, 0.3, 0, 0], [1, 2, 3, 4, 5]]))


def test_the_model_reads_nothing_that_no_prediction_needs():
    rows = rows_of("12[3]456789")
    batch = rows.micro_batch(rows.plans([(0,)], max_tokens=100)[0], CPU)
    assert batch.input_ids_L_T.tolist() == [[1, 2]]


def test_rows_that_begin_alike_share_an_input():
    rows = rows_of("12[3]", "12[4]", "12[34]", "13[4]", "12[3]")
    [plan] = rows.plans(singles(rows), max_tokens=100)
    batch = rows.micro_batch(plan, CPU)
    read = {tuple(ids) for ids in batch.input_ids_L_T.tolist()}
    assert read == {(1, 2, 3), (1, 3, 0)}
    assert_reads_its_own_tokens(rows, plan)


def test_a_shorter_row_that_differs_later_has_an_input_of_its_own():
    rows = rows_of("123[4]", "124[5]", "1[2]")
    [plan] = rows.plans(singles(rows), max_tokens=100)
    assert len(plan.trees) == 2
    assert_reads_its_own_tokens(rows, plan)


@pytest.mark.parametrize("budget", [1, 7, 12, 40, 1000])
@pytest.mark.parametrize("tree_tokens", [0, 9, 1000])
@pytest.mark.parametrize(("packed", "multiple"), [(False, 1), (True, 1), (True, 8)])
def test_every_unit_is_in_one_micro_batch_and_the_budget_holds(budget, tree_tokens, packed, multiple):
    generator = np.random.default_rng(0)
    texts = []
    for _ in range(60):
        prompt = "".join(str(d) for d in generator.integers(0, 3, size=generator.integers(1, 6)))
        texts.append(f"{prompt}[{''.join(str(d) for d in generator.integers(0, 3, size=generator.integers(1, 4)))}]")
    rows = rows_of(*texts)
    units = [(row, (row * 7) % 60) for row in range(60)]
    plans = rows.plans(units, max_tokens=budget, tree_tokens=min(tree_tokens, budget), packed=packed, multiple=multiple)
    assert sorted(unit for plan in plans for unit in plan.units) == list(range(60))
    for plan in plans:
        assert {row for unit in plan.units for row in units[unit]} == set(plan.rows)
        batch = rows.micro_batch(plan, CPU)
        assert batch.input_ids_L_T.numel() <= budget or len(plan.trees) <= 2  # what a unit of two rows needs
        assert not packed or 0 <= padding(batch, plan) < multiple == math.gcd(multiple, batch.input_ids_L_T.shape[1])
        assert_reads_its_own_tokens(rows, plan)


def test_inputs_that_begin_alike_are_read_as_one_tree():
    rows = rows_of("1234[56]", "1234[78]", "1239[8]", "1234[5]", "777[7]")
    [plan] = rows.plans(singles(rows), max_tokens=100, tree_tokens=50)
    assert sorted(tree.length for tree in plan.trees) == [3, 4 + 1 + 1 + 1]
    batch = rows.micro_batch(plan, CPU)
    assert sorted(batch.input_ids_L_T.flatten().tolist()) == sorted([1, 2, 3, 4, 5, 7, 9, 7, 7, 7, 0, 0, 0, 0])
    assert seen(batch.parts, batch.input_ids_L_T.shape).any(-1).all()  # padding too: attention over nothing is 0 / 0
    assert_reads_its_own_tokens(rows, plan)


def test_a_packed_sequence_is_filled_up_by_what_sees_only_itself():
    rows = rows_of("1234[56]", "1234[78]", "777[7]")
    [plan] = rows.plans(singles(rows), max_tokens=100, tree_tokens=50, packed=True, multiple=6)
    batch = rows.micro_batch(plan, CPU)
    assert batch.input_ids_L_T.shape == (1, 12)
    assert batch.input_ids_L_T[0, 9:].tolist() == [0, 0, 0]
    assert batch.positions_L_T[0, 9:].tolist() == [0, 1, 2]
    assert batch.parts[-1] == (9, 12, 9, 12, True)
    assert batch.places_R_T[batch.loss_mask_R_T].max() < 9
    assert batch.loss_mask_R_T.sum() == rows.loss_mask_N.sum()
    assert_reads_its_own_tokens(rows, plan)


def test_branches_see_a_beginning_that_all_of_them_share_in_one_part():
    rows = rows_of("1234567[8]", "1234567 9[8]", "1234569[89]", "4[5]")
    [plan] = rows.plans(singles(rows), max_tokens=100, tree_tokens=50, packed=True)
    batch = rows.micro_batch(plan, CPU)
    [tree, other] = sorted((part for part in batch.parts if part.causal), key=lambda part: part.begin - part.end)[:2]
    across = [part for part in batch.parts if not part.causal]
    assert batch.input_ids_L_T.shape == (1, 8 + 2 + 1)
    assert (tree.end - tree.begin, other.end - other.begin) == (8, 2)
    assert [(part.end - part.begin, part.behind - part.first) for part in across] == [(2, 6)]
    many = rows_of("123456[78]", "123456[88]", "123456[98]", "12345[0]6")
    [plan] = many.plans(singles(many), max_tokens=100, tree_tokens=50, packed=True)
    across = [part for part in many.micro_batch(plan, CPU).parts if not part.causal]
    assert [(part.end - part.begin, part.behind - part.first) for part in across] == [(2, 6)]
    assert_reads_its_own_tokens(many, plan)


def test_a_tree_is_no_larger_than_allowed_and_joins_only_what_has_much_in_common():
    rows = rows_of("1234[5]", "1236[5]", "1237[5]", "1238[5]")
    [plan] = rows.plans(singles(rows), max_tokens=100, tree_tokens=5)
    assert [tree.length for tree in plan.trees] == [5, 5]
    little = rows_of("1[2]", "12345678[9]", "1999999[9]")
    [plan] = little.plans(singles(little), max_tokens=100, tree_tokens=50)
    assert len(plan.trees) == 2


def test_a_tree_that_exceeds_the_budget_is_read_once_with_all_that_needs_it():
    rows = rows_of("12345[6]", "12345[78]", "1234 9[1]", "55[5]", "66[6]")
    plans = rows.plans(singles(rows), max_tokens=4, tree_tokens=20, packed=True)
    assert [sorted(plan.rows) for plan in plans] == [[3, 4], [0, 1, 2]]


def test_pairs_of_one_candidate_set_stay_together():
    first, second = ["1112[3]", "1112[4]", "1112[56]"], ["2222[3]", "2222[4]", "2222[56]"]
    rows = rows_of(*first, *second)
    units = [(0, 1), (3, 4), (0, 2), (3, 5), (1, 2), (4, 5)]
    plans = rows.plans(units, max_tokens=5)
    assert [sorted(plan.units) for plan in plans] == [[0, 2, 4], [1, 3, 5]]
    assert [len(plan.trees) for plan in plans] == [1, 1]


def test_values_come_back_to_their_own_tokens():
    rows = rows_of("1[23]", "45[6]78", "9[1]")
    rows.new_column("score")
    for plan in rows.plans(singles(rows), max_tokens=4):
        batch = rows.micro_batch(plan, CPU)
        rows.store("score", batch, batch.token_ids_R_T.float() * 10)
    assert rows.columns["score"].tolist() == (rows.token_ids_N * 10).tolist()


def test_counts():
    rows = rows_of("1[23]", "45[6]7[8]", "9[1]")
    assert rows.trained_tokens.tolist() == [2, 2, 1]
    assert rows.lengths.tolist() == [3, 5, 2]


@pytest.mark.parametrize(
    ("ids", "masks", "message"),
    [
        ([[1, 2]], [[0, 1, 1]], "a mask for every token"),
        ([[1, 2]], [[0, 0]], "row 0 has no trained token"),
        ([[1, 2], [3]], [[0, 1], [1]], "row 1: its first token is trained"),
        ([[1, 2], []], [[0, 1], []], "row 1 has no trained token"),
    ],
)
def test_rows_that_cannot_be_trained_are_refused(ids, masks, message):
    with pytest.raises(DataError, match=message):
        Rows.of(ids, masks)


def test_a_column_of_another_size_is_refused():
    with pytest.raises(DataError, match="each of 3 tokens, found 2"):
        rows_of("1[23]").add_column("value", [[1, 2]])
