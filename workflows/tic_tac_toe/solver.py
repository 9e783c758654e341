"""The exact value of every position under best play: 1 won, 0.5 drawn, 0 lost.

Every cached value has the side it is meant for in its key, so that the two players of one process can't read each
other's values.
"""

from __future__ import annotations

from functools import cache

from nat_finetune_workflows.tic_tac_toe.game import FREE, Board, Side, is_over, legal_moves, play, to_move, winner

WON, DRAWN, LOST = 1.0, 0.5, 0.0


def result(board: Board, side: Side) -> float:
    """What a finished game is worth to `side`.

    Raises:
        ValueError: the game has not ended.
    """
    won_by = winner(board)
    if won_by is None and FREE in board:
        raise ValueError(f"the game on {board!r} has not ended")
    return DRAWN if won_by is None else WON if won_by == side else LOST


@cache
def value(board: Board, side: Side) -> float:
    """What `board` is worth to `side` when both sides play their best from here on, whoever is to move."""
    if is_over(board):
        return result(board, side)
    best = max if to_move(board) == side else min
    return best(value(play(board, square), side) for square in legal_moves(board))


def move_values(board: Board) -> dict[int, float]:
    """What each legal move is worth to the side that makes it; empty when the game has ended."""
    side = to_move(board)
    return {square: value(play(board, square), side) for square in legal_moves(board)}


def optimal_moves(board: Board) -> tuple[int, ...]:
    """The legal moves of the highest value, in rising order; a slower win counts as much as a fast one."""
    values = move_values(board)
    return tuple(square for square in values if values[square] == max(values.values()))


def is_critical(board: Board) -> bool:
    """Whether the choice matters: some legal move is worse than another."""
    return len(set(move_values(board).values())) > 1
