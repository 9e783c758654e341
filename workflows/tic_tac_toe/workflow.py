"""The workflow `tic_tac_toe`: a game against a random opponent, or one move in a given position.

An example's input is a position and a side, `X...O....|X`: the policy plays that side from that position on. What the player
may do is a function of its own (`tic_tac_toe_move`, or `tic_tac_toe_search` which tries several moves), so that
`target_functions` can name it. The opponent draws from a generator of the rollout: its moves are no model calls.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Literal

from nat_finetune.config.component import FunctionBaseConfig, FunctionRef
from nat_finetune.data.seeds import derive_seed
from nat_finetune.errors import DataError, PolicyFailure
from nat_finetune.interfaces import Builder
from nat_finetune.registry import register_function
from nat_finetune.tracing.context import current_recorder
from nat_finetune.types import Example
from nat_finetune_workflows.tic_tac_toe.game import SIDES, Board, Side, check, is_over, legal_moves, play, to_move
from nat_finetune_workflows.tic_tac_toe.solver import result

CANDIDATE_STEP = "move_candidate"
"""Name under which search emits its scored candidates."""


class TicTacToeConfig(FunctionBaseConfig, name="tic_tac_toe"):
    """Tic-tac-toe against a uniformly random opponent."""

    player: FunctionRef
    """The function that chooses the policy's moves."""
    mode: Literal["game", "move"] = "game"
    """`game`: play to the end. `move`: one move in the given position."""


def parse_input(example: Example) -> tuple[Board, Side]:
    """(position, the policy's side) of an example.

    Raises:
        DataError: the input is no `board|side`, or the game is over there.
    """
    text = str(example.input)
    board, _, side = text.partition("|")
    try:
        if side not in SIDES or is_over(check(board)):
            raise ValueError(f"expected a position in which the game goes on and a side, such as 'X...O....|X', found {text!r}")
    except ValueError as error:
        raise DataError(f"example {example.id!r}: {error}") from None
    return board, side


@register_function(config_type=TicTacToeConfig)
async def tic_tac_toe(config: TicTacToeConfig, builder: Builder) -> AsyncIterator[Callable[[Example], Awaitable[Any]]]:
    """Make the workflow."""
    player = await builder.get_function(config.player)

    async def run(example: Example) -> dict[str, Any]:
        board, side = parse_input(example)
        opponent = random.Random(derive_seed(_rollout_seed(), "opponent"))
        boards = [board]
        while not is_over(board):
            if to_move(board) == side:
                square = await player(board)
                if square not in legal_moves(board):
                    raise PolicyFailure(f"square {square + 1} is not free on {board}")
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


def _rollout_seed() -> int:
    """The running rollout's seed; a fixed one outside of rollouts."""
    recorder = current_recorder()
    return recorder.seed if recorder is not None else 0
