"""How a position is shown to a model, and what its answer means.

The board shows each free square by its number, 1 to 9, so that any number to be read off it is a legal answer; the answer
is one number. `tiny` is for the shipped policy (one token a square), `chat` for language models, with three examples to go by.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from nat_finetune_workflows.tic_tac_toe.game import FREE, Board, legal_moves, other, to_move

Style = Literal["tiny", "chat"]
Problem = Literal["unparsable", "out of range", "occupied"]

_NUMBER = re.compile(r"[0-9]{1,9}")
_RULES = (
    "You play tic-tac-toe. The board shows X, O and the numbers of the free squares. Three in a row wins. "
    "Answer with the number of one free square and nothing else."
)
EXAMPLES: tuple[tuple[Board, int], ...] = (("XX.OO....", 2), ("X.O.X....", 8), ("X..O..X..", 4))
"""Training positions with their only best move, shown to language models first: a win, a block, and a threat prevented."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A model's answer: the square it takes, or why it is no legal move."""

    square: int | None
    problem: Problem | None = None


def cells(board: Board) -> tuple[str, ...]:
    """The nine squares as a player sees them: `X`, `O`, or the number of a free one."""
    return tuple(str(square + 1) if mark == FREE else mark for square, mark in enumerate(board))


def tiny_prompt(board: Board) -> str:
    """The position in nine words for the shipped policy: `5` is square 5, free, `+5` its own mark there, `-5` the opponent's.

    A word for each mark on each square, seen from the side that moves: a model this small then needs no attention pattern to
    tell squares apart, learns both sides as one, and gets there several times sooner than with shared words `X` and `O`.
    """
    shown = {FREE: "", to_move(board): "+", other(to_move(board)): "-"}
    return " ".join(f"{shown[mark]}{square}" for square, mark in enumerate(board, start=1))


def chat_prompt(board: Board) -> str:
    """The position in one line for a language model: the side to move, the squares row by row, and those it may take.

    The free squares are named once more because small models copy a number from a list more readily than out of a grid.
    """
    free = " ".join(answer_text(square) for square in legal_moves(board))
    return f"{to_move(board)} to move | {' '.join(cells(board))} | free: {free}"


def messages(board: Board, style: Style) -> list[dict[str, str]]:
    """The conversation that asks for the next move on `board`; it ends with the user's turn.

    Raises:
        ValueError: the game on `board` has ended.
    """
    if not legal_moves(board):
        raise ValueError(f"there is no move to ask for: the game on {board!r} has ended")
    if style == "tiny":
        return [{"role": "user", "content": tiny_prompt(board)}]
    shown = [{"role": "system", "content": _RULES}]
    for example, square in EXAMPLES:
        shown.append({"role": "user", "content": chat_prompt(example)})
        shown.append({"role": "assistant", "content": answer_text(square)})
    return [*shown, {"role": "user", "content": chat_prompt(board)}]


def answer_text(square: int) -> str:
    """How the square is written as an answer."""
    return str(square + 1)


def parse_answer(text: str, board: Board) -> Answer:
    """The move that an answer names: exactly one number of a free square, with nothing but white space around it."""
    number = text.strip()
    if not _NUMBER.fullmatch(number):
        return Answer(None, "unparsable")
    square = int(number) - 1
    if not 0 <= square < 9:
        return Answer(None, "out of range")
    return Answer(square) if square in legal_moves(board) else Answer(None, "occupied")
