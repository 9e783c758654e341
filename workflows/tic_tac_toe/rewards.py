"""Evaluators of the game: from the moves of a rollout, or exactly from the policy's move distribution.

Every evaluator scores a rollout, as a reward does. With `exact: true` (the default) an evaluation asks the policy for the
probability of every move instead, and takes expectations by the solver: no sampling error, no rollouts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from statistics import fmean

from nat_finetune_workflows.tic_tac_toe import expected
from nat_finetune_workflows.tic_tac_toe.game import Board, Side, canonical, is_over, legal_moves, play, to_move
from nat_finetune_workflows.tic_tac_toe.moves import MoveFunction
from nat_finetune_workflows.tic_tac_toe.solver import is_critical, move_values, optimal_moves
from nat_finetune_workflows.tic_tac_toe.workflow import parse_input

from nat_finetune.config.component import EvaluatorBaseConfig, FunctionRef
from nat_finetune.errors import ConfigError
from nat_finetune.interfaces import Builder, Evaluator, KnownOutputs
from nat_finetune.registry import register_evaluator
from nat_finetune.types import Cause, Example, FunctionCall, Rollout, ScoreRange

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

    score_range = ScoreRange(0.0, 1.0)

    def __init__(self, player: str, score: MoveScore) -> None:
        self._player = player
        self._score = score

    async def __call__(self, example: Example, rollout: Rollout) -> float | None:
        """Mean over the player's moves that count; None if none does."""
        moves = [e for e in rollout.events if isinstance(e, FunctionCall) and e.name == self._player and e.output is not None]
        return _mean(self._score(move.input, move.output["square"]) for move in moves)


class ExactMoveEvaluator(MoveEvaluator):
    """As `MoveEvaluator`, and exactly in the position of each example."""

    def __init__(self, player: str, score: MoveScore, move: MoveFunction) -> None:
        super().__init__(player, score)
        self._move = move

    async def evaluate_policy(self, examples: Sequence[Example]) -> list[float | None]:
        """Expected score of the policy's next move from each example's position on."""
        asked = [next_boards(*parse_input(example)) for example in examples]
        boards = list(dict.fromkeys(board for group in asked for board in group))
        policy = dict(zip(boards, await self._move.distributions(boards), strict=True))
        return [_mean(_expectation(board, policy[board], self._score) for board in group) for group in asked]

    def references(self, examples: Sequence[Example]) -> Mapping[str, float]:
        """What uniform legal play scores."""
        asked = [next_boards(*parse_input(example)) for example in examples]
        scores = [_mean(_expectation(board, expected.uniform(board), self._score) for board in group) for group in asked]
        mean = _mean(scores)
        return {"uniform": mean} if mean is not None else {}


def next_boards(board: Board, side: Side) -> list[Board]:
    """Where the policy is asked next: here, or after each reply of the opponent who moves first."""
    if to_move(board) == side:
        return [board]
    return [after for square in legal_moves(board) if not is_over(after := play(board, square))]


def _mean(scores: Iterable[float | None]) -> float | None:
    """Mean of the known scores."""
    known = [score for score in scores if score is not None]
    return fmean(known) if known else None


def _expectation(board: Board, distribution: Distribution, score: MoveScore) -> float | None:
    illegal = score(board, None)
    if illegal is None:
        return None
    moves = {square: score(board, square) or 0.0 for square in distribution}
    missing = 1.0 - sum(distribution.values())
    return sum(p * moves[square] for square, p in distribution.items()) + missing * illegal


async def outcome_of(example: Example, rollout: Rollout) -> float | None:
    """What the game came to; 0 where the policy's own answer ended it, None where it was not played to the end."""
    if rollout.failure is not None:
        return 0.0 if rollout.failure.cause is Cause.POLICY else None
    result = rollout.output["result"]
    return None if result is None else float(result)


class OutcomeEvaluator:
    """The outcome of a rollout's game."""

    score_range = ScoreRange(0.0, 1.0)

    def known_outputs(self, example: Example) -> KnownOutputs:
        """A won game and a lost one."""
        return KnownOutputs(gold=({"result": 1.0},), bad=({"result": 0.0},))

    async def __call__(self, example: Example, rollout: Rollout) -> float | None:
        """Win 1, draw 0.5, loss or illegal move 0."""
        return await outcome_of(example, rollout)


class ExactOutcomeEvaluator(OutcomeEvaluator):
    """As `OutcomeEvaluator`, and exactly: the expectation over the policy's moves and the random opponent's."""

    def __init__(self, move: MoveFunction) -> None:
        self._move = move

    async def evaluate_policy(self, examples: Sequence[Example]) -> list[float | None]:
        """Expected outcome from each example's position on."""
        games = [parse_input(example) for example in examples]
        boards = expected.policy_states(games)
        policy = dict(zip(boards, await self._move.distributions(boards), strict=True))
        return [expected.outcomes(board, side, policy).score for board, side in games]

    def references(self, examples: Sequence[Example]) -> Mapping[str, float]:
        """Uniform legal play, and the best response to the random opponent."""
        games = [parse_input(example) for example in examples]
        return {
            "uniform": fmean(expected.outcomes(board, side, expected.uniform).score for board, side in games),
            "best_response": fmean(expected.best_score(board, side) for board, side in games),
        }

    async def notes(self, train: Sequence[Example], test: Sequence[Example]) -> list[str]:
        """How much of what the test games visit no training game can visit, board symmetry apart."""
        seen = {canonical(board) for board in expected.policy_states([parse_input(example) for example in train])}
        visited = {canonical(board) for board in expected.policy_states([parse_input(example) for example in test])}
        share = len(visited - seen) / len(visited)
        return [
            f"{share:.0%} of the {len(visited)} positions (up to symmetry) that test games can reach can't be reached in "
            "training games: openings are held out, later positions largely are not"
        ]


@register_evaluator(config_type=TicTacToeOutcomeConfig)
async def tic_tac_toe_outcome(config: TicTacToeOutcomeConfig, builder: Builder) -> AsyncIterator[Evaluator]:
    """Make the evaluator."""
    yield ExactOutcomeEvaluator(await _move(config, builder)) if config.exact else OutcomeEvaluator()


@register_evaluator(config_type=TicTacToeMoveQualityConfig)
async def tic_tac_toe_move_quality(config: TicTacToeMoveQualityConfig, builder: Builder) -> AsyncIterator[Evaluator]:
    """Make the evaluator."""
    yield await _evaluator(config, builder, move_quality)


@register_evaluator(config_type=TicTacToeLegalRateConfig)
async def tic_tac_toe_legal_rate(config: TicTacToeLegalRateConfig, builder: Builder) -> AsyncIterator[Evaluator]:
    """Make the evaluator."""
    yield await _evaluator(config, builder, legal)


@register_evaluator(config_type=TicTacToeOptimalRateConfig)
async def tic_tac_toe_optimal_rate(config: TicTacToeOptimalRateConfig, builder: Builder) -> AsyncIterator[Evaluator]:
    """Make the evaluator."""
    yield await _evaluator(config, builder, optimal)


@register_evaluator(config_type=TicTacToeCriticalRateConfig)
async def tic_tac_toe_critical_rate(config: TicTacToeCriticalRateConfig, builder: Builder) -> AsyncIterator[Evaluator]:
    """Make the evaluator."""
    yield await _evaluator(config, builder, critical)


async def _evaluator(config: _MoveEvaluatorConfig, builder: Builder, score: MoveScore) -> Evaluator:
    if not config.exact:
        return MoveEvaluator(config.player, score)
    return ExactMoveEvaluator(config.player, score, await _move(config, builder))


async def _move(config: _MoveEvaluatorConfig, builder: Builder) -> MoveFunction:
    """The player itself, which can say how likely it makes each move.

    Raises:
        ConfigError: the player can't.
    """
    player = (await builder.get_function(config.player)).inner  # type: ignore[attr-defined]
    if not isinstance(player, MoveFunction):
        raise ConfigError(
            f"functions.{config.player} has no move distribution, which exact evaluation needs; "
            "name a `_type: tic_tac_toe_move`, or set `exact: false`"
        )
    return player
