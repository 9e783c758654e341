"""The shipped data, row by row: what it says, what it shares between splits, and that the script writes it again."""

from __future__ import annotations

import json
from importlib import resources
from itertools import combinations

import pytest
from nat_finetune_workflows.tic_tac_toe import game, make_data, solver

DATA = resources.files("nat_finetune_workflows.tic_tac_toe") / "data"
SPLITS = ("train", "validation", "test")
FILES = [f"{kind}_{split}.jsonl" for kind in ("game", "move") for split in SPLITS]
SHORT = ["move_train_short.jsonl", "move_test_short.jsonl"]


def rows(file: str) -> list[dict]:
    return [json.loads(line) for line in (DATA / file).read_text(encoding="utf-8").splitlines()]


def position(row: dict) -> tuple[str, str]:
    board, _, side = row["question"].partition("|")
    return board, side


def test_the_script_writes_the_shipped_files(tmp_path):
    make_data.main(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*FILES, *SHORT}
    for file in (*FILES, *SHORT):
        assert (tmp_path / file).read_text(encoding="utf-8") == (DATA / file).read_text(encoding="utf-8"), file


@pytest.mark.parametrize("file", FILES)
def test_every_row_is_an_open_position_under_its_own_id(file):
    found = rows(file)
    assert len({row["id"] for row in found}) == len(found)
    assert len({row["question"] for row in found}) == len(found)
    for row in found:
        board, side = position(row)
        assert not game.is_over(game.check(board))
        assert side in game.SIDES
        assert row["task_key"] == game.canonical(board)


def test_splits_share_no_position_up_to_symmetry_games_and_moves_together():
    boards = {
        split: {
            image for kind in ("game", "move") for row in rows(f"{kind}_{split}.jsonl") for image in images(position(row)[0])
        }
        for split in SPLITS
    }
    for one, two in combinations(SPLITS, 2):
        assert not boards[one] & boards[two], (one, two)
    assert sum(map(len, boards.values())) == 4520, "every position that is not over is in one split"


def images(board: str) -> set[str]:
    return {game.transform(board, symmetry) for symmetry in game.SYMMETRIES}


def test_openings_have_up_to_three_plies_and_both_sides():
    for split in SPLITS:
        found = [position(row) for row in rows(f"game_{split}.jsonl")]
        assert {9 - board.count(".") for board, _ in found} <= {0, 1, 2, 3}
        assert {(board, side) for board, side in found} == {(board, side) for board, _ in found for side in game.SIDES}


def test_move_rows_ask_the_side_to_move_and_know_the_best_squares():
    for split in SPLITS:
        for row in rows(f"move_{split}.jsonl"):
            board, side = position(row)
            assert side == game.to_move(board)
            assert [int(number) - 1 for number in row["answer"].split()] == list(solver.optimal_moves(board))
            assert row["critical"] == solver.is_critical(board)


def test_held_out_rows_are_one_per_cluster_and_enough_for_tight_intervals():
    moves = rows("move_test.jsonl")
    assert len({row["task_key"] for row in moves}) == len(moves) >= 200
    assert sum(row["critical"] for row in moves) >= 150
    assert len({row["task_key"] for row in rows("game_test.jsonl")}) >= 18
    assert len({9 - position(row)[0].count(".") for row in moves}) >= 7, "early and late positions"
