"""Exact expectations of a policy that plays against a uniformly random opponent.

A policy is what it answers to each board where it is to move: nine probabilities by square, or a mapping from square to
probability (squares that are left out have none). Mass on occupied squares, and mass that is missing from 1 (an answer that is
no move), is illegal: the game ends there, and earns what a loss earns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from nat_finetune_workflows.tic_tac_toe.game import Board, Side, canonical, is_over, legal_moves, play, positions, to_move
from nat_finetune_workflows.tic_tac_toe.solver import DRAWN, LOST, WON, result

MoveProbs = Mapping[int, float] | Sequence[float]
Policy = Callable[[Board], MoveProbs] | Mapping[Board, MoveProbs]
TOLERANCE = 1e-4
"""How far above 1 the probabilities of one board may sum: rounding of float32."""


@dataclass(frozen=True)
class Outcomes:
    """How often a game ends in each way; the four sum to 1."""

    won: float = 0.0
    drawn: float = 0.0
    lost: float = 0.0
    illegal: float = 0.0

    @property
    def score(self) -> float:
        """The expected outcome: win 1, draw 0.5, loss or illegal move 0."""
        return self.won + 0.5 * self.drawn


def legal_probs(policy: Policy, board: Board) -> dict[int, float]:
    """What `policy` gives each legal move of `board`; what these lack to 1 is illegal.

    Raises:
        ValueError: the policy has no answer for `board`, or its answer is no distribution.
    """
    if isinstance(policy, Mapping):
        if board not in policy:
            raise ValueError(f"the policy has no probabilities for {board!r}: expected one entry per board of policy_states()")
        answer = policy[board]
    else:
        answer = policy(board)
    by_square = dict(answer) if isinstance(answer, Mapping) else dict(enumerate(answer))
    chances = by_square.values()
    if not (by_square.keys() <= set(range(9)) and all(chance >= 0 for chance in chances) and sum(chances) <= 1 + TOLERANCE):
        raise ValueError(f"expected probabilities by square (0 to 8) that sum to at most 1 on {board!r}; found {by_square}")
    return {square: float(by_square.get(square, 0.0)) for square in legal_moves(board)}


def uniform(board: Board) -> dict[int, float]:
    """The policy that plays any legal move, each as likely as another."""
    moves = legal_moves(board)
    return {square: 1 / len(moves) for square in moves}


def outcomes(opening: Board, side: Side, policy: Policy) -> Outcomes:
    """How games from `opening` end for `policy` as `side`, exactly (every board that can follow is visited once).

    Raises:
        ValueError: as `legal_probs`.
    """

    @cache
    def ends(board: Board) -> Outcomes:
        if is_over(board):
            worth = result(board, side)
            return Outcomes(won=float(worth == WON), drawn=float(worth == DRAWN), lost=float(worth == LOST))
        probs = legal_probs(policy, board) if to_move(board) == side else uniform(board)
        parts = [(probs[square], ends(play(board, square))) for square in probs]
        return Outcomes(
            won=sum(p * end.won for p, end in parts),
            drawn=sum(p * end.drawn for p, end in parts),
            lost=sum(p * end.lost for p, end in parts),
            illegal=max(0.0, 1 - sum(probs.values())) + sum(p * end.illegal for p, end in parts),
        )

    return ends(opening)


@cache
def best_score(board: Board, side: Side) -> float:
    """The highest expected outcome from `board` that any policy can reach as `side`: the best response to random play."""
    if is_over(board):
        return result(board, side)
    scores = [best_score(play(board, square), side) for square in legal_moves(board)]
    return max(scores) if to_move(board) == side else sum(scores) / len(scores)


@cache
def uniform_score(board: Board, side: Side) -> float:
    """The expected outcome from `board` for `side` when both sides play at random."""
    if is_over(board):
        return result(board, side)
    scores = [uniform_score(play(board, square), side) for square in legal_moves(board)]
    return sum(scores) / len(scores)


def best_response(side: Side) -> Callable[[Board], dict[int, float]]:
    """The policy that reaches `best_score`; of moves that are equal to within rounding it plays the first."""

    def policy(board: Board) -> dict[int, float]:
        moves = legal_moves(board)
        scores = {square: best_score(play(board, square), side) for square in moves}
        return {next(square for square in moves if scores[square] > max(scores.values()) - 1e-12): 1.0}

    return policy


def policy_states(openings: Iterable[tuple[Board, Side]]) -> tuple[Board, ...]:
    """Every board where a policy may have to move in games from (opening, its side), once each, by rising number of marks."""
    found = {
        board for opening, side in openings for board in positions(opening) if to_move(board) == side and not is_over(board)
    }
    return tuple(sorted(found, key=lambda board: (-board.count("."), board)))


def visits(opening: Board, side: Side, policy: Policy) -> dict[Board, float]:
    """How often `policy` has to move on each board in one game from `opening` as `side`, in expectation.

    A game meets a board at most once, so this is also the probability that it does. Boards it never meets are left out.

    Raises:
        ValueError: as `legal_probs`.
    """
    met: dict[Board, float] = {}
    layer = {opening: 1.0}
    while layer:
        following: dict[Board, float] = {}
        for board, reached in layer.items():
            if is_over(board):
                continue
            own = to_move(board) == side
            if own:
                met[board] = reached
            for square, chance in (legal_probs(policy, board) if own else uniform(board)).items():
                if chance > 0:
                    after = play(board, square)
                    following[after] = following.get(after, 0.0) + reached * chance
        layer = following
    return met


def unseen_share(visited: Mapping[Board, float], seen: Iterable[Board]) -> float | None:
    """The share of visits (by their weight) that fall on boards not in `seen`, board symmetry apart; None without visits."""
    known = {canonical(board) for board in seen}
    total = sum(visited.values())
    return sum(weight for board, weight in visited.items() if canonical(board) not in known) / total if total else None
