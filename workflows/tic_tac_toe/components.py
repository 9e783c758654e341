"""Everything that this workflow registers: the entry point `nat_finetune.components` names this module."""

from nat_finetune_workflows.tic_tac_toe.moves import tic_tac_toe_move
from nat_finetune_workflows.tic_tac_toe.rewards import (
    tic_tac_toe_critical_rate,
    tic_tac_toe_legal_rate,
    tic_tac_toe_move_quality,
    tic_tac_toe_optimal_rate,
    tic_tac_toe_outcome,
)
from nat_finetune_workflows.tic_tac_toe.strategies import (
    exploring_selection,
    move_search,
    solver_scoring,
    tic_tac_toe_search,
)
from nat_finetune_workflows.tic_tac_toe.workflow import tic_tac_toe

__all__ = [
    "exploring_selection",
    "move_search",
    "solver_scoring",
    "tic_tac_toe",
    "tic_tac_toe_critical_rate",
    "tic_tac_toe_legal_rate",
    "tic_tac_toe_move",
    "tic_tac_toe_move_quality",
    "tic_tac_toe_optimal_rate",
    "tic_tac_toe_outcome",
    "tic_tac_toe_search",
]
