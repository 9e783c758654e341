"""What of a step is trained, and how long a run goes on with nothing to train on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from nat_finetune.config.schema import FinetuningConfig
from nat_finetune.data.signal import all_at_best
from nat_finetune.interfaces import Evaluator, RangedEvaluator
from nat_finetune.runstore import RunState
from nat_finetune.types import Item, Rollout, Target


class Ending(StrEnum):
    """Why training ended before its last step."""

    NOTHING_LEFT = "nothing left to learn"
    """Every rollout scored the evaluator's maximum."""
    NO_SIGNAL = "no trainable signal"
    """Nothing differed inside any group, or no pair was formed."""


def best_scores(target: Target, evaluators: Mapping[str, Evaluator]) -> dict[str, float]:
    """The best score of each trained reward whose evaluator says what ends it has: the lowest, where the weight is negative."""
    best: dict[str, float | None] = {}
    for term in target.rewards:
        evaluator = evaluators[term.name]
        if isinstance(evaluator, RangedEvaluator):
            best[term.name] = evaluator.score_range.high if term.weight > 0 else evaluator.score_range.low
    return {name: score for name, score in best.items() if score is not None}


class SignalWatch:
    """Counts the steps in a row that had nothing to train on; the count is part of the run's state, and so outlives a crash."""

    def __init__(
        self, state: RunState, config: FinetuningConfig, target: Target, best: Mapping[str, float], signal_steps: int
    ) -> None:
        self._state = state
        self._patience = min(config.flat_patience, max(1, signal_steps))
        self._names = target.reward_names
        self._best = best

    def look(self, items: Sequence[Item], rollouts: Sequence[Rollout]) -> Ending | None:
        """How the run ends after this step; None where it goes on."""
        state = self._state
        if items:
            state.steps_without_signal = state.steps_at_best = 0
            return None
        state.steps_without_signal += 1
        state.steps_at_best = state.steps_at_best + 1 if all_at_best(rollouts, self._best, self._names) else 0
        if state.steps_without_signal < self._patience:
            return None
        return Ending.NOTHING_LEFT if state.steps_at_best >= self._patience else Ending.NO_SIGNAL
