"""`backend_trainer`: the backend runs the rollouts itself, and trains from the first example to the last in one job."""

from __future__ import annotations

from collections.abc import AsyncIterator

from nat_finetune.config.component import TrainerConfig
from nat_finetune.interfaces import Builder, Trainer, TrainingRun
from nat_finetune.registry import register_trainer


class BackendTrainerConfig(TrainerConfig, name="backend_trainer"):
    """One job for the whole training, for a backend that asks for rollouts as it needs them."""

    fits = frozenset({"group"})
    hands_over = True
    unhonoured = frozenset(
        {
            "curriculum_learning",
            "dynamic_sampling",
            "flat_patience",
            "max_failure_rate",
            "max_unscored_rate",
            "watch",
            "checkpoint_interval",
            "keep_checkpoints",
        }
    )

    def makes_one_update(self, num_epochs: int) -> bool:
        """All epochs are in the one job."""
        return True


class BackendTrainer:
    """What is the run's is done before and after: measuring, the report, the checkpoint."""

    async def train(self, run: TrainingRun) -> None:
        """Drive the run to its end."""
        await run.hand_over()


@register_trainer(config_type=BackendTrainerConfig)
async def backend_trainer(config: BackendTrainerConfig, builder: Builder) -> AsyncIterator[Trainer]:
    """Make the trainer."""
    yield BackendTrainer()
