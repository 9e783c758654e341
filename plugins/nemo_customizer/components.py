"""What this plugin registers: NAT's `nemo_customizer_trainer_adapter` and `nemo_customizer_trainer`."""

from __future__ import annotations

from collections.abc import AsyncIterator

from nat_finetune_plugins.nemo_customizer.config import NeMoCustomizerTrainerAdapterConfig
from pydantic import Field

from nat_finetune.config.component import TrainerConfig
from nat_finetune.data.selection import SelectionRules
from nat_finetune.interfaces import Builder, Trainer, TrainerAdapter
from nat_finetune.registry import register_trainer, register_trainer_adapter
from nat_finetune.rounds import RoundRules, RoundTrainer


class NeMoCustomizerTrainerConfig(TrainerConfig, name="nemo_customizer_trainer"):
    """NAT's order for NeMo Customizer: collect in `num_runs` passes, then one job on all pairs."""

    fits = frozenset({"pair", "demonstration"})
    unhonoured = frozenset({"examples_per_step", "num_epochs"})
    takes_records = True
    of_pairs = frozenset({"deduplicate_pairs", "max_pairs"})
    unused_with_records = frozenset({"num_runs", "continue_on_collection_error"})

    num_runs: int = Field(1, ge=1)
    """Passes over the examples, each with seeds of its own."""
    continue_on_collection_error: bool = False
    """Go on with the other passes when one has too many failed rollouts."""
    deduplicate_pairs: bool = True
    """Of pairs with equal context, chosen and rejected, keep the first."""
    max_pairs: int | None = Field(None, ge=1)
    """Train on at most this many pairs, drawn with the run's seed."""
    wait_for_completion: bool = True
    """false: the run ends once the job is submitted, and says how to attach to it."""

    def makes_one_update(self, num_epochs: int) -> bool:
        """Always."""
        return True

    def detaches(self) -> bool:
        """With `wait_for_completion: false`."""
        return not self.wait_for_completion

    def selection_rules(self) -> SelectionRules:
        """Its filters; every pair counts the same, as in NAT."""
        return SelectionRules(deduplicate=self.deduplicate_pairs, max_pairs=self.max_pairs, weighting="pair")


@register_trainer_adapter(config_type=NeMoCustomizerTrainerAdapterConfig)
async def nemo_customizer_trainer_adapter(
    config: NeMoCustomizerTrainerAdapterConfig, builder: Builder
) -> AsyncIterator[TrainerAdapter]:
    """Open connections to the services; close them at the end of the run."""
    from nat_finetune_plugins.nemo_customizer.adapter import open_adapter

    async with open_adapter(config, builder) as adapter:
        yield adapter


@register_trainer(config_type=NeMoCustomizerTrainerConfig)
async def nemo_customizer_trainer(config: NeMoCustomizerTrainerConfig, builder: Builder) -> AsyncIterator[Trainer]:
    """Make the trainer: one round of passes and an update."""
    rules = RoundRules(
        config.selection_rules(),
        passes=config.num_runs,
        go_on=config.continue_on_collection_error,
        wait=config.wait_for_completion,
    )
    yield RoundTrainer(rules)
