"""The function `tic_tac_toe_move`: ask a model for one move."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from nat_finetune_workflows.tic_tac_toe.game import Board, legal_moves
from nat_finetune_workflows.tic_tac_toe.prompts import Style, answer_text, messages, parse_answer

from nat_finetune.config.component import FunctionBaseConfig, LLMRef
from nat_finetune.errors import BackendError
from nat_finetune.interfaces import Builder, ChatModel, ScoringChatModel
from nat_finetune.registry import register_function


class TicTacToeMoveConfig(FunctionBaseConfig, name="tic_tac_toe_move"):
    """One model call that answers with the number of a free square."""

    llm: LLMRef
    style: Style = "chat"
    """`tiny`: the bare board, for `builtin:tic-tac-toe`. `chat`: instruction and three examples, for a chat model."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a model answered in a position."""

    board: Board
    messages: tuple[dict[str, str], ...]
    text: str
    square: int | None
    """None: no legal move."""
    problem: str | None
    """Why it is none."""
    call_seq: int | None
    """The recorded model call."""


class MoveFunction:
    """Asks a model; and says how likely it makes each legal move."""

    def __init__(self, llm: ChatModel, style: Style) -> None:
        self._llm = llm
        self._style: Style = style

    async def __call__(self, board: Board) -> Proposal:
        """One answer, legal or not."""
        prompt = messages(board, self._style)
        reply = await self._llm.chat(prompt)
        answer = parse_answer(reply.text, board)
        return Proposal(
            board=board,
            messages=tuple(prompt),
            text=reply.text,
            square=answer.square,
            problem=answer.problem,
            call_seq=reply.call_seq,
        )

    async def distributions(self, boards: Sequence[Board]) -> list[dict[int, float]]:
        """Probability of each legal move of each board; what they lack to 1 is illegal or no move.

        Raises:
            BackendError: the model can't score given answers.
        """
        if not isinstance(self._llm, ScoringChatModel):
            raise BackendError(f"llms.{self._llm.name} can't score answers; set `exact: false` on the evaluator")
        prompts = [messages(board, self._style) for board in boards]
        answers = [[answer_text(square) for square in legal_moves(board)] for board in boards]
        scored = await self._llm.score(prompts, answers)
        return [
            {square: math.exp(nats) for square, nats in zip(legal_moves(board), row, strict=True)}
            for board, row in zip(boards, scored, strict=True)
        ]


@register_function(config_type=TicTacToeMoveConfig)
async def tic_tac_toe_move(config: TicTacToeMoveConfig, builder: Builder) -> AsyncIterator[MoveFunction]:
    """Make the function."""
    yield MoveFunction(await builder.get_llm(config.llm), config.style)
