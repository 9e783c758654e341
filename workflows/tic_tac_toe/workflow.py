"""The workflow `tic_tac_toe`: a game against a random opponent, or one move in a given position.

An example's input is a position and a side, `X...O....|X`: the policy plays that side from that position on. What the player
may do is a function of its own (`tic_tac_toe_move`, or `tic_tac_toe_search` which tries several moves), so that
`target_functions` can name it. The opponent draws from a generator of the rollout: its moves are no model calls.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from statistics import fmean
from typing import Any, Literal

from nat_finetune_workflows.tic_tac_toe.expected import best_score
from nat_finetune_workflows.tic_tac_toe.game import SIDES, Board, Side, check, is_over, legal_moves, play, to_move
from nat_finetune_workflows.tic_tac_toe.moves import Proposal
from nat_finetune_workflows.tic_tac_toe.solver import move_values, result

from nat_finetune import tracing
from nat_finetune.config.component import FunctionBaseConfig, FunctionRef
from nat_finetune.data.seeds import derive_seed
from nat_finetune.errors import DataError, PolicyFailure
from nat_finetune.interfaces import Builder
from nat_finetune.registry import register_function
from nat_finetune.tracing.context import current_recorder
from nat_finetune.types import Example


class TicTacToeConfig(FunctionBaseConfig, name="tic_tac_toe"):
    """Tic-tac-toe against a uniformly random opponent."""

    player: FunctionRef
    """The function that chooses the policy's moves."""
    mode: Literal["game", "move"] = "game"
    """`game`: play to the end. `move`: one move in the given position."""
    step_reward: Literal["none", "solver", "expected"] = "none"
    """What each move is paid: its worth less that of an average legal move, under best play (`solver`) or against this random
    opponent (`expected`); -1 for an illegal one."""


def parse_input(example: Example) -> tuple[Board, Side]:
    """(position, the policy's side) of an example.

    Raises:
        DataError: the input is no `board|side`, or the game is over there.
    """
    text = str(example.input)
    board, _, side = text.partition("|")
    expectation = "expected a position in which the game goes on and a side, such as 'X...O....|X'"
    try:
        over = is_over(check(board))
    except ValueError as error:
        raise DataError(f"example {example.id!r}: {expectation}: {error}") from None
    if over or side not in SIDES:
        raise DataError(f"example {example.id!r}: {expectation}, found {text!r}")
    return board, side


@register_function(config_type=TicTacToeConfig)
async def tic_tac_toe(config: TicTacToeConfig, builder: Builder) -> AsyncIterator[Callable[[Example], Awaitable[Any]]]:
    """Make the workflow."""
    player = await builder.get_function(config.player)

    def pay(proposal: Proposal) -> None:
        if config.step_reward != "none":
            tracing.reward("move", move_reward(proposal.board, proposal.square, config.step_reward), call=proposal.call_seq)

    async def run(example: Example) -> dict[str, Any]:
        board, side = parse_input(example)
        opponent = random.Random(derive_seed(_rollout_seed(), "opponent"))
        boards = [board]
        while not is_over(board):
            if to_move(board) == side:
                proposal = await player(board)
                pay(proposal)
                if proposal.square is None:
                    raise PolicyFailure(f"the answer {proposal.text!r} is {proposal.problem} on {board}")
                square = proposal.square
            elif config.mode == "move":
                raise DataError(f"example {example.id!r}: it is not {side}'s move, and mode is move")
            else:
                square = opponent.choice(legal_moves(board))
            board = play(board, square)
            boards.append(board)
            if config.mode == "move":
                break
        return {"boards": boards, "side": side, "result": result(board, side) if is_over(board) else None}

    yield run


def move_reward(board: Board, square: int | None, values: Literal["solver", "expected"]) -> float:
    """Worth of the move less the mean worth of the legal moves there; -1 for an answer that is no legal move.

    Centred by position, since turns of one index are compared with one another: where every move is as good, none is praised.
    """
    if square is None:
        return -1.0
    if values == "solver":
        worth = move_values(board)
    else:
        worth = {move: best_score(play(board, move), to_move(board)) for move in legal_moves(board)}
    return worth[square] - fmean(worth.values())


def _rollout_seed() -> int:
    """The running rollout's seed; a fixed one outside of rollouts."""
    recorder = current_recorder()
    return recorder.seed if recorder is not None else 0
