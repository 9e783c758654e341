"""The solver against a search that remembers nothing."""

from __future__ import annotations

import random

import pytest
from nat_finetune_workflows.tic_tac_toe import game, solver


def searched(board: str, side: str) -> float:
    """Minimax without a cache: slow, and unable to mix anything up."""
    won_by = game.winner(board)
    if won_by:
        return 1.0 if won_by == side else 0.0
    if "." not in board:
        return 0.5
    values = [searched(game.play(board, square), side) for square in game.legal_moves(board)]
    return max(values) if game.to_move(board) == side else min(values)


LATE = [board for board in game.positions() if board.count(".") <= 4]
"""Boards that a search without a cache answers at once: 3,962 of the 5,478."""


def test_late_boards_equal_a_search_without_a_cache():
    assert [(solver.value(b, "X"), solver.value(b, "O")) for b in LATE] == [(searched(b, "X"), searched(b, "O")) for b in LATE]


@pytest.mark.parametrize("board", ["X...O....", "XO.......", "X........"])
def test_early_boards_equal_a_search_without_a_cache(board):
    assert (solver.value(board, "X"), solver.value(board, "O")) == (searched(board, "X"), searched(board, "O"))


def test_the_game_is_a_draw():
    assert solver.value(game.START, "X") == solver.value(game.START, "O") == 0.5


def test_the_sides_of_one_process_do_not_share_values():
    """Asked in any order and mixed, what one side has is what the other lacks."""
    asked = [(board, side) for board in game.positions() for side in game.SIDES]
    random.Random(0).shuffle(asked)
    solver.value.cache_clear()
    found = {question: solver.value(*question) for question in asked}
    assert all(found[board, "X"] + found[board, "O"] == 1.0 for board in game.positions())
    assert all(found[board, side] == searched(board, side) for board in LATE for side in game.SIDES)


def test_values_keep_under_symmetry():
    for board in game.positions():
        images = {solver.value(game.transform(board, symmetry), "O") for symmetry in game.SYMMETRIES}
        assert images == {solver.value(board, "O")}


@pytest.mark.parametrize(
    ("board", "values"),
    [
        ("XX.OO....", {2: 1.0, 5: 0.5, 6: 0.0, 7: 0.0, 8: 0.0}),  # X wins now, or blocks, or loses
        ("XX.O.....", {2: 0.0, 4: 0.0, 5: 0.0, 6: 0.0, 7: 0.0, 8: 0.0}),  # O is lost whatever it does
        ("X........", {1: 0.0, 2: 0.0, 3: 0.0, 4: 0.5, 5: 0.0, 6: 0.0, 7: 0.0, 8: 0.0}),  # only the centre holds
    ],
)
def test_moves_are_valued_for_the_side_that_makes_them(board, values):
    assert solver.move_values(board) == values
    assert solver.optimal_moves(board) == tuple(square for square in values if values[square] == max(values.values()))
    assert solver.is_critical(board) == (len(set(values.values())) > 1)


def test_a_running_game_has_no_result():
    with pytest.raises(ValueError, match="has not ended"):
        solver.result("X........", "X")


def test_how_much_the_choice_matters():
    """Uniform play finds a best move at 40 % of the critical positions, of which there are 431 up to symmetry."""
    critical = [b for b in {game.canonical(b) for b in game.positions()} if solver.is_critical(b)]
    chance = [len(solver.optimal_moves(b)) / len(game.legal_moves(b)) for b in critical]
    assert len(critical) == 431
    assert sum(chance) / len(chance) == pytest.approx(0.40, abs=0.005)
