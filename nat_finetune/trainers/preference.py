"""`preference_trainer`: collect candidates in one or several passes over the examples, then one update on all pairs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal

from pydantic import Field, model_validator

from nat_finetune.config.component import TrainerConfig
from nat_finetune.data.selection import OnContradiction, PairWeighting, SelectionRules
from nat_finetune.interfaces import Builder, Trainer
from nat_finetune.registry import register_trainer
from nat_finetune.rounds import RoundRules, RoundTrainer


class PreferenceTrainerConfig(TrainerConfig, name="preference_trainer"):
    """Collect over all examples, then one update on the preference pairs: the order of DPO."""

    fits = frozenset({"pair", "demonstration"})
    unhonoured = frozenset({"examples_per_step"})
    takes_records = True
    of_pairs = frozenset({"deduplicate_pairs", "on_contradiction", "pair_weighting", "max_pairs"})
    unused_with_records = frozenset({"num_runs", "num_rounds", "reference", "continue_on_collection_error"})

    num_runs: int = Field(1, ge=1)
    """Passes over the examples before the updates of a round, each with seeds of its own."""
    num_rounds: int = Field(1, ge=1)
    """Rounds of fresh candidates, of the policy that the round before made, and `finetuning.num_epochs` updates on them."""
    reference: Literal["start", "last_round"] = "start"
    """The policy that preferences are held against: as it was when preference training began, or, anew in every round, as the
    last round left it."""
    sft_warmup_epochs: int = Field(0, ge=0)
    """Updates before the first preference update that only imitate the chosen completions: for a model that can't answer."""
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

    def makes_one_update(self, num_epochs: int) -> bool:
        """With one round of one epoch, and no warm-up."""
        return (self.num_rounds, num_epochs, self.sft_warmup_epochs) == (1, 1, 0)

    def needs_kept_weights(self) -> tuple[str, ...]:
        """The keys in use that only preference pairs and an adapter with the weights in its own hands can honour."""
        used = {"sft_warmup_epochs": self.sft_warmup_epochs > 0, "reference": self.reference == "last_round"}
        return tuple(key for key, is_used in used.items() if is_used)

    def selection_rules(self) -> SelectionRules:
        """Its filters, and how much each pair counts."""
        return SelectionRules(
            deduplicate=self.deduplicate_pairs,
            on_contradiction=self.on_contradiction,
            max_pairs=self.max_pairs,
            weighting=self.pair_weighting,
        )

    @model_validator(mode="after")
    def _reference_is_used(self) -> PreferenceTrainerConfig:
        if self.reference == "last_round" and self.num_rounds == 1:
            raise ValueError("reference: last_round would be ignored: num_rounds is 1")
        return self


@register_trainer(config_type=PreferenceTrainerConfig)
async def preference_trainer(config: PreferenceTrainerConfig, builder: Builder) -> AsyncIterator[Trainer]:
    """Make the trainer."""
    rules = RoundRules(
        config.selection_rules(),
        passes=config.num_runs,
        rounds=config.num_rounds,
        warm_ups=config.sft_warmup_epochs,
        new_reference=config.reference == "last_round",
        go_on=config.continue_on_collection_error,
    )
    yield RoundTrainer(rules)
