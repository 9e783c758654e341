"""Evaluators of the game: from the moves of a rollout, or exactly from the policy's move distribution.

Every evaluator scores a rollout, as a reward does. With `exact: true` (the default) an evaluation asks the policy for the
probability of every move instead, and takes expectations by the solver: no sampling error, no rollouts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from nat_finetune.config.component import EvaluatorBaseConfig, FunctionRef
from nat_finetune.errors import ConfigError
from nat_finetune.interfaces import Builder, Evaluator
from nat_finetune.registry import register_evaluator
from nat_finetune.types import Example, FunctionCall, Rollout
from nat_finetune_workflows.tic_tac_toe import expected
from nat_finetune_workflows.tic_tac_toe.game import Board, legal_moves
from nat_finetune_workflows.tic_tac_toe.moves import MoveFunction
from nat_finetune_workflows.tic_tac_toe.solver import is_critical, move_values, optimal_moves
from nat_finetune_workflows.tic_tac_toe.splits import unseen_share
from nat_finetune_workflows.tic_tac_toe.workflow import parse_input

MoveScore = Callable[[Board, int | None], float | None]
"""Score of a chosen square (None: no legal move) in a position; None where the position does not count."""
Distribution = Mapping[int, float]
"""Square to probability; what is missing to 1 is illegal."""


class _MoveEvaluatorConfig(EvaluatorBaseConfig):
    player: FunctionRef
    """The function whose moves are scored."""
    exact: bool = True
    """Evaluate from the player's move distribution; needs a local model."""


class TicTacToeOutcomeConfig(_MoveEvaluatorConfig, name="tic_tac_toe_outcome"):
    """Win 1, draw 0.5, loss or illegal move 0; exact: the expectation against the random opponent."""


class TicTacToeMoveQualityConfig(_MoveEvaluatorConfig, name="tic_tac_toe_move_quality"):
    """Mean solver value of the chosen moves: 1 won, 0.5 drawn, 0 lost or illegal."""


class TicTacToeLegalRateConfig(_MoveEvaluatorConfig, name="tic_tac_toe_legal_rate"):
    """Share of answers that are legal moves."""


class TicTacToeOptimalRateConfig(_MoveEvaluatorConfig, name="tic_tac_toe_optimal_rate"):
    """Share of moves that are optimal under best play."""


class TicTacToeCriticalRateConfig(_MoveEvaluatorConfig, name="tic_tac_toe_critical_rate"):
    """Share of optimal moves in positions where some legal move is worse; unknown where none is."""


def move_quality(board: Board, square: int | None) -> float | None:
    """Solver value of the move, 0 for an illegal one."""
    return 0.0 if square is None else move_values(board)[square]


def legal(board: Board, square: int | None) -> float | None:
    """1 for a legal move."""
    return 0.0 if square is None else 1.0


def optimal(board: Board, square: int | None) -> float | None:
    """1 for an optimal move."""
    return float(square in optimal_moves(board))


def critical(board: Board, square: int | None) -> float | None:
    """1 for an optimal move where the choice matters, None elsewhere."""
    return optimal(board, square) if is_critical(board) else None


class MoveEvaluator:
    """Mean of a move's score over the moves of a rollout."""

    def __init__(self, player: str, score: MoveScore) -> None:
        self._player = player
        self._score = score

    async def __call__(self, example: Example, rollout: Rollout) -> float | None:
        """Mean over the player's moves that count; None if none does."""
        moves = [e for e in rollout.events if isinstance(e, FunctionCall) and e.name == self._player and e.output is not None]
        scores = [self._score(move.input, move.output["square"]) for move in moves]
        known = [score for score in scores if score is not None]
        return fmean(known) if known else None


class ExactMoveEvaluator(MoveEvaluator):
    """As `MoveEvaluator`, and exactly in the position of each example."""

    def __init__(self, player: str, score: MoveScore, move: MoveFunction) -> None:
        super().__init__(player, score)
        self._move = move

    async def evaluate_policy(self, examples: Sequence[Example]) -> list[float | None]:
        """Expected score of the policy's next move in each example's position."""
        boards = [parse_input(example)[0] for example in examples]
        return [
            _expectation(board, distribution, self._score)
            for board, distribution in zip(boards, await self._move.distributions(boards), strict=True)
        ]

    def references(self, examples: Sequence[Example]) -> Mapping[str, float]:
        """What uniform legal play scores."""
        boards = [parse_input(example)[0] for example in examples]
        scores = [_expectation(board, uniform(board), self._score) for board in boards]
        known = [score for score in scores if score is not None]
        return {"uniform": fmean(known)} if known else {}


def uniform(board: Board) -> Distribution:
    """Every legal move alike."""
    moves = legal_moves(board)
    return dict.fromkeys(moves, 1.0 / len(moves))


def _expectation(board: Board, distribution: Distribution, score: MoveScore) -> float | None:
    illegal = score(board, None)
    if illegal is None:
        return None
    moves = {square: score(board, square) or 0.0 for square in distribution}
    missing = 1.0 - sum(distribution.values())
    return sum(p * moves[square] for square, p in distribution.items()) + missing * illegal
