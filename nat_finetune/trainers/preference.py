"""`preference_trainer`: collect candidates in one or several passes over the examples, then one update on all pairs."""

from __future__ import annotations

from collections.abc import AsyncIterator

from pydantic import Field

from nat_finetune.config.component import TrainerConfig
from nat_finetune.data.selection import OnContradiction, PairWeighting, SelectionRules
from nat_finetune.errors import RolloutFailureLimit
from nat_finetune.interfaces import Builder, Step, Trainer, TrainingRun
from nat_finetune.registry import register_trainer
from nat_finetune.types import Rollout


class PreferenceTrainerConfig(TrainerConfig, name="preference_trainer"):
    """Collect over all examples, then one update on the preference pairs: the order of DPO."""

    fits = frozenset({"pair", "demonstration"})
    unhonoured = frozenset({"num_epochs", "examples_per_step"})
    takes_records = True
    unused_with_records = frozenset({"num_runs", "continue_on_collection_error"})

    num_runs: int = Field(1, ge=1)
    """Passes over the examples before the update, each with seeds of its own."""
    continue_on_collection_error: bool = False
    """Go on with the other passes when one has too many failed rollouts."""
    deduplicate_pairs: bool = True
    """Of pairs with equal context, chosen and rejected, keep the first; people's equal labels are merged, with their weight."""
    on_contradiction: OnContradiction | None = None
    """Where A is preferred to B and B to A in one context: keep or drop both; null: keep people's labels, drop scored ones."""
    pair_weighting: PairWeighting | None = None
    """`pair`: every pair counts the same; `set`: every candidate set does; null: `set` for scored candidates, `pair` for
    people's labels."""
    max_pairs: int | None = Field(None, ge=1)
    """Train on at most this many pairs, drawn with the run's seed."""


class PreferenceTrainer:
    """All passes run under the policy as it was at the start; the update trains `epochs` (adapter) passes over the pairs."""

    def __init__(self, config: PreferenceTrainerConfig) -> None:
        self._config = config
        self._rules = SelectionRules(
            deduplicate=config.deduplicate_pairs,
            on_contradiction=config.on_contradiction,
            max_pairs=config.max_pairs,
            weighting=config.pair_weighting,
        )

    async def train(self, run: TrainingRun) -> None:
        """Drive the run to its end."""
        rollouts: list[Rollout] = []
        last: Step | None = None
        async for step in run.passes(self._config.num_runs):
            last = step
            try:
                rollouts += await run.collect(step)
            except RolloutFailureLimit as error:
                if not self._config.continue_on_collection_error:
                    raise
                run.warn(f"pass {step.index + 1} of {self._config.num_runs} is left out: {error}")
        if last is None:
            return
        built = run.build(rollouts, step=last.index)
        chosen = await run.select(built, self._rules)
        await run.update(chosen, last)
        await run.validate_if_due(last)


@register_trainer(config_type=PreferenceTrainerConfig)
async def preference_trainer(config: PreferenceTrainerConfig, builder: Builder) -> AsyncIterator[Trainer]:
    """Make the trainer."""
    yield PreferenceTrainer(config)
