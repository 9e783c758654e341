"""Test-time-compute strategies of the game: propose several moves, score each exactly, go on with one.

Together they are the function `tic_tac_toe_search`, which emits every proposal as a scored candidate: what
`dpo_traj_builder` makes preference pairs of.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from nat_finetune_workflows.tic_tac_toe.game import Board
from nat_finetune_workflows.tic_tac_toe.moves import Proposal
from nat_finetune_workflows.tic_tac_toe.solver import move_values
from pydantic import Field

from nat_finetune import tracing
from nat_finetune.config.component import FunctionBaseConfig, FunctionRef, TTCStrategyBaseConfig, TTCStrategyRef
from nat_finetune.data.seeds import derive_seed
from nat_finetune.interfaces import Builder
from nat_finetune.registry import register_function, register_ttc_strategy
from nat_finetune.tracing.context import current_recorder

ILLEGAL_SCORE = -1.0
"""Below a lost move's 0: an answer that is no move is worse than any move."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A proposal and its score."""

    proposal: Proposal
    score: float


class MoveSearchConfig(TTCStrategyBaseConfig, name="tic_tac_toe_move_search"):
    """Search: several proposals for the same position, from the player."""

    player: FunctionRef
    num_candidates: int = Field(3, ge=1)


@register_ttc_strategy(config_type=MoveSearchConfig)
async def move_search(
    config: MoveSearchConfig, builder: Builder
) -> AsyncIterator[Callable[[Board], Awaitable[list[Proposal]]]]:
    """Make the strategy."""
    player = await builder.get_function(config.player)

    async def search(board: Board) -> list[Proposal]:
        return list(await asyncio.gather(*(player(board) for _ in range(config.num_candidates))))

    yield search


class SolverScoringConfig(TTCStrategyBaseConfig, name="tic_tac_toe_solver_scoring"):
    """Scoring: what the move is worth under best play (1 won, 0.5 drawn, 0 lost), -1 for an answer that is no legal move."""


@register_ttc_strategy(config_type=SolverScoringConfig)
async def solver_scoring(
    config: SolverScoringConfig, builder: Builder
) -> AsyncIterator[Callable[[Board, Sequence[Proposal]], Awaitable[list[Scored]]]]:
    """Make the strategy."""

    async def score(board: Board, proposals: Sequence[Proposal]) -> list[Scored]:
        values = move_values(board)
        return [Scored(p, ILLEGAL_SCORE if p.square is None else values[p.square]) for p in proposals]

    yield score


class ExploringSelectionConfig(TTCStrategyBaseConfig, name="tic_tac_toe_selection"):
    """Selection: the best-scored legal proposal, or with probability `explore` any legal one, so that games vary."""

    explore: float = Field(0.0, ge=0, le=1)


@register_ttc_strategy(config_type=ExploringSelectionConfig)
async def exploring_selection(
    config: ExploringSelectionConfig, builder: Builder
) -> AsyncIterator[Callable[[Board, Sequence[Scored]], Awaitable[Scored]]]:
    """Make the strategy."""

    async def select(board: Board, scored: Sequence[Scored]) -> Scored:
        legal = [item for item in scored if item.proposal.square is not None]
        recorder = current_recorder()
        draw = random.Random(derive_seed(recorder.seed if recorder else 0, "explore", board))
        if legal and draw.random() < config.explore:
            return draw.choice(legal)
        return max(legal or scored, key=lambda item: item.score)

    yield select


class TicTacToeSearchConfig(FunctionBaseConfig, name="tic_tac_toe_search"):
    """Chooses a move by search, scoring and selection, and emits every proposal as a scored candidate."""

    search: TTCStrategyRef
    scoring: TTCStrategyRef
    selection: TTCStrategyRef
    step_name: str = Field("move_candidate", min_length=1)
    """Name of the candidates, for `dpo_traj_builder.ttc_step_name`."""

    def candidate_steps(self) -> frozenset[str]:
        """Step names under which it emits candidates."""
        return frozenset({self.step_name})


@register_function(config_type=TicTacToeSearchConfig)
async def tic_tac_toe_search(
    config: TicTacToeSearchConfig, builder: Builder
) -> AsyncIterator[Callable[[Board], Awaitable[Proposal]]]:
    """Make the function."""
    search = await builder.get_ttc_strategy(config.search)
    scoring = await builder.get_ttc_strategy(config.scoring)
    selection = await builder.get_ttc_strategy(config.selection)

    async def choose(board: Board) -> Proposal:
        scored: list[Scored] = await scoring(board, await search(board))
        selected: Scored = await selection(board, scored)
        for index, item in enumerate(scored):
            tracing.candidate(
                config.step_name,
                turn_id=board,
                candidate_index=index,
                input=list(item.proposal.messages),
                output=item.proposal.text,
                score=item.score,
                selected=item is selected,
                call=item.proposal.call_seq,
            )
        return selected.proposal

    yield choose
