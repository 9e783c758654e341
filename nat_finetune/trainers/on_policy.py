"""`on_policy_trainer`: fresh rollouts for every step, one update on them, then fresh rollouts again."""

from __future__ import annotations

from collections.abc import AsyncIterator

from nat_finetune.config.component import TrainerConfig
from nat_finetune.interfaces import Builder, Trainer, TrainingRun
from nat_finetune.registry import register_trainer


class OnPolicyTrainerConfig(TrainerConfig, name="on_policy_trainer"):
    """Collect `examples_per_step` examples, update, collect again: the order of GRPO."""

    fits = frozenset({"group", "pair", "demonstration"})


class OnPolicyTrainer:
    """An epoch of 1,000 examples is many updates, each on rollouts of the policy that it improves."""

    async def train(self, run: TrainingRun) -> None:
        """Drive the run to its end."""
        async for step in run.steps():
            rollouts = await run.collect(step)
            built = run.build(rollouts, step=step.index)
            chosen = await run.select(built)
            await run.update(chosen, step)
            await run.validate_if_due(step)


@register_trainer(config_type=OnPolicyTrainerConfig)
async def on_policy_trainer(config: OnPolicyTrainerConfig, builder: Builder) -> AsyncIterator[Trainer]:
    """Make the trainer."""
    yield OnPolicyTrainer()
