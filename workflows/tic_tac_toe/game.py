"""Tic-tac-toe as plain functions on boards.

A board is a string of nine characters, row by row: `X`, `O`, or `.` for a free square. X starts, so a board says whose
move it is. A square is 0 to 8 in code; what a player reads and writes is its number, 1 to 9 (`prompts`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

Board = str
Side = str

X, O, FREE = "X", "O", "."  # noqa: E741 - the name of the side
SIDES: tuple[Side, Side] = (X, O)
START: Board = FREE * 9
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


def _symmetries() -> tuple[tuple[int, ...], ...]:
    """The four rotations of the board, each as it is and mirrored: new square i shows old square `s[i]`."""
    rotation = tuple(3 * (2 - column) + row for row in range(3) for column in range(3))
    mirror = tuple(3 * row + 2 - column for row in range(3) for column in range(3))
    turned = [tuple(range(9))]
    for _ in range(3):
        turned.append(tuple(turned[-1][square] for square in rotation))
    return tuple(turned + [tuple(board[square] for square in mirror) for board in turned])


SYMMETRIES = _symmetries()


def other(side: Side) -> Side:
    """The opponent of `side`."""
    return O if side == X else X


def to_move(board: Board) -> Side:
    """The side whose turn it is; on a full board, the side that would move next."""
    return X if board.count(X) == board.count(O) else O


def winner(board: Board) -> Side | None:
    """The side with three in a row, if there is one."""
    for a, b, c in LINES:
        if board[a] == board[b] == board[c] != FREE:
            return board[a]
    return None


def is_over(board: Board) -> bool:
    """Whether the game has ended: won, or no square free."""
    return FREE not in board or winner(board) is not None


def legal_moves(board: Board) -> tuple[int, ...]:
    """Free squares in rising order; none once the game has ended."""
    return () if winner(board) else tuple(square for square, mark in enumerate(board) if mark == FREE)


def play(board: Board, square: int) -> Board:
    """The board after the side to move has taken `square`.

    Raises:
        ValueError: `square` is not legal on `board`.
    """
    if square not in legal_moves(board):
        raise ValueError(f"square {square} is not legal on {board!r}: expected one of {legal_moves(board)}")
    return board[:square] + to_move(board) + board[square + 1 :]


def transform(board: Board, symmetry: tuple[int, ...]) -> Board:
    """The board seen through one of `SYMMETRIES`."""
    return "".join(board[square] for square in symmetry)


def canonical(board: Board) -> Board:
    """One board for all that are equal up to rotation and reflection: the first of them in string order."""
    return min(transform(board, symmetry) for symmetry in SYMMETRIES)


def check(board: Board) -> Board:
    """`board` itself, if play can reach it.

    Raises:
        ValueError: a wrong length or mark, a count of marks that alternate play can't give, or play that went on after a win.
    """
    if len(board) != 9 or set(board) - {X, O, FREE}:
        raise ValueError(f"expected nine characters of 'X', 'O' and '.', row by row; found {board!r}")
    if board.count(X) - board.count(O) not in (0, 1):
        raise ValueError(f"X starts and sides alternate, so X has as many marks as O or one more; found {board!r}")
    if board not in reachable():
        raise ValueError(f"{board!r} can't be reached: the game would have ended earlier")
    return board


def positions(start: Board = START) -> Iterator[Board]:
    """Every board that play can reach from `start`, itself included, each once, in order of plies."""
    layer = {start: None}
    while layer:
        yield from layer
        layer = {play(board, square): None for board in layer for square in legal_moves(board)}


@cache
def reachable() -> frozenset[Board]:
    """The 5,478 boards that play can reach."""
    return frozenset(positions())
