"""What of a step is trained, and how long a run goes on with nothing to train on."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from enum import StrEnum

from nat_finetune.config.schema import FinetuningConfig
from nat_finetune.data.curriculum import CurriculumRules, apply_rules
from nat_finetune.data.groups import group_spread, is_flat
from nat_finetune.data.keys import example_key
from nat_finetune.data.rewards import total
from nat_finetune.data.seeds import derive_seed
from nat_finetune.data.signal import all_at_best
from nat_finetune.interfaces import Evaluator, RangedEvaluator, Step
from nat_finetune.runstore import RunState
from nat_finetune.types import Dropped, DropReason, Example, Group, Item, Rollout, Target


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


def curriculum_rules(config: FinetuningConfig) -> CurriculumRules | None:
    """The rules of the curriculum; None where none is enabled."""
    asked = config.curriculum_learning
    return CurriculumRules(**asked.model_dump()) if asked.enabled else None


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


class Curriculum:
    """The easiest groups first, more of them as training goes on; what it knows of the examples is part of the run's state.

    A step's groups are ranked among the examples of the other steps, at the mean reward that each had when it was seen last:
    whatever `examples_per_step` is, the share is one of the dataset. A step trains at least one group.
    """

    def __init__(self, rules: CurriculumRules, state: RunState, target: Target, seed: int) -> None:
        self._rules = rules
        self._state = state
        self._target = target
        self._seed = derive_seed(seed, "curriculum")

    def choose(
        self, groups: Sequence[Group], dropped: Sequence[Dropped], *, step: int, epoch: int
    ) -> tuple[list[Group], list[Dropped]]:
        """The groups to train on, easiest first, and what is left out; `dropped` are the step's groups that were flat."""
        keys = [example_key(group.example_id) for group in groups]
        known: dict[str, float] = dict(self._state.curriculum.get("difficulty", {}))
        for key in [*keys, *(example_key(d.example_id) for d in dropped if d.what == "group" and d.example_id is not None)]:
            known.pop(key, None)
        selected = apply_rules(
            [[total(t.rewards, self._target) for t in group.trajectories] for group in groups],
            self._rules,
            epoch=epoch,
            seed=derive_seed(self._seed, step),
            others=list(known.values()),
            spreads_P=[group_spread(group.trajectories, self._target) for group in groups],
        )
        self._state.curriculum = {
            "difficulty": known | {keys[position]: mean for position, mean in selected.difficulty.items()},
            "included": [keys[position] for position in selected.groups],
            "percentile": selected.percentile,
            "last_expansion_epoch": selected.last_expansion_epoch,
        }
        left_out = [Dropped("group", why, "", groups[position].example_id) for position, why in selected.reasons.items()]
        chosen: list[Group] = []
        for position, members in zip(selected.groups, selected.members, strict=True):
            group, without = self._drawn(groups[position], members)
            chosen += [group] if group is not None else []
            left_out += without
        return chosen, left_out

    def _drawn(self, group: Group, members: Sequence[int]) -> tuple[Group | None, list[Dropped]]:
        """The group with these trajectories only; a draw of equal ones is flat."""
        kept = tuple(group.trajectories[index] for index in members)
        left_out = [
            Dropped("trajectory", DropReason.RANDOM_SUBSAMPLE, "", t.example_id, t.rollout_id)
            for index, t in enumerate(group.trajectories)
            if index not in members
        ]
        if not any(trajectory.trained for trajectory in kept):
            return None, [*left_out, Dropped("group", DropReason.TRUNCATED, "after random_subsample", group.example_id)]
        if is_flat(kept, self._target):
            return None, [*left_out, Dropped("group", DropReason.FLAT_GROUP, "after random_subsample", group.example_id)]
        return Group(group.example_id, kept), left_out


def further_examples(examples: Sequence[Example], step: Step, seed: int, limit: int) -> list[Example]:
    """Examples outside the step that may take the places of those whose groups are flat, in the order of their trial."""
    inside = {example_key(example.id) for example in step.examples}
    others = [example for example in examples if example_key(example.id) not in inside]
    random.Random(derive_seed(seed, "dynamic_sampling", step.index)).shuffle(others)
    return others[:limit]
