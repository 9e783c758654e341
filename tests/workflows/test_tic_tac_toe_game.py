"""The game against facts that are known from elsewhere: its counts of boards, of boards up to symmetry, and of games."""

from __future__ import annotations

from functools import cache

import pytest
from nat_finetune_workflows.tic_tac_toe import game


@cache
def games_from(board: str) -> int:
    return 1 if game.is_over(board) else sum(games_from(game.play(board, square)) for square in game.legal_moves(board))


def test_counts_of_the_literature():
    boards = list(game.positions())
    assert len(boards) == len(set(boards)) == 5478
    assert len({game.canonical(board) for board in boards}) == 765
    assert games_from(game.START) == 255_168
    ended = [board for board in boards if game.is_over(board)]
    assert [sum(game.winner(b) == side for b in ended) for side in (game.X, game.O, None)] == [626, 316, 16]


def test_symmetries_are_eight_permutations_that_keep_lines():
    assert len(set(game.SYMMETRIES)) == 8
    lines = {frozenset(line) for line in game.LINES}
    for symmetry in game.SYMMETRIES:
        assert sorted(symmetry) == list(range(9))
        assert {frozenset(symmetry[square] for square in line) for line in game.LINES} == lines


def test_canonical_form_is_one_per_class():
    for board in game.positions():
        images = {game.transform(board, symmetry) for symmetry in game.SYMMETRIES}
        assert {game.canonical(image) for image in images} == {game.canonical(board)}
        assert game.canonical(board) in images


def test_transform_turns_the_board():
    quarter = game.SYMMETRIES[1]
    assert game.transform("X........", quarter) in {"..X......", "......X.."}
    assert game.transform(".X.......", quarter) in {"...X.....", ".....X..."}


def test_sides_alternate_and_a_won_game_is_over():
    board = game.START
    for square, side in [(0, "X"), (3, "O"), (1, "X"), (4, "O"), (2, "X")]:
        assert game.to_move(board) == side
        board = game.play(board, square)
    assert (game.winner(board), game.is_over(board), game.legal_moves(board)) == ("X", True, ())


@pytest.mark.parametrize(
    ("board", "square"), [("X........", 0), ("X........", 9), ("X........", -1), ("XXXOO....", 8)], ids=str
)
def test_illegal_moves_are_refused(board, square):
    with pytest.raises(ValueError, match=rf"square {square} is not legal on '{board}'"):
        game.play(board, square)


@pytest.mark.parametrize(
    ("board", "message"),
    [
        ("X", "nine characters"),
        ("x........", "nine characters"),
        ("O........", "X starts"),
        ("XX.......", "X starts"),
        ("XXXOOO...", "can't be reached"),
        ("XXXOO.O..", "can't be reached"),
    ],
)
def test_boards_that_play_cannot_reach_are_refused(board, message):
    with pytest.raises(ValueError, match=message):
        game.check(board)


def test_check_gives_back_a_board_of_play():
    assert game.check("X...O....") == "X...O...."
