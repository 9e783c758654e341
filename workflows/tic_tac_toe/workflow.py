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

from nat_finetune_workflows.tic_tac_toe.expected import uniform_score
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
    step_reward: Literal["none", "solver", "playout"] = "none"
    """What each move is paid: how much better it is than an average legal move, under best play (`solver`) or if both sides
    play at random after it (`playout`); -1 for an illegal one."""


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


def move_reward(board: Board, square: int | None, values: Literal["solver", "playout"]) -> float:
    """How much better the move is than the average legal one, in units of the spread there; -1 for an answer that is none.

    Centred and scaled by position, since turns of one index are compared with one another: where every move is as good, none
    is praised, and a choice counts alike early, when little is decided, and late.
    """
    if square is None:
        return -1.0
    worth = move_values(board) if values == "solver" else playout_values(board)
    spread = max(worth.values()) - min(worth.values())
    return (worth[square] - fmean(worth.values())) / spread if spread > 0 else 0.0


def playout_values(board: Board) -> dict[int, float]:
    """What each legal move is worth to the side that makes it, if both sides play at random after it."""
    return {square: uniform_score(play(board, square), to_move(board)) for square in legal_moves(board)}


def _rollout_seed() -> int:
    """The running rollout's seed; a fixed one outside of rollouts."""
    recorder = current_recorder()
    return recorder.seed if recorder is not None else 0
