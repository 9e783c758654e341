"""The components that this plugin registers."""

from __future__ import annotations

from collections.abc import AsyncIterator

from nat_finetune_plugins.trl.settings import TRLTrainerAdapterConfig

from nat_finetune.interfaces import Builder, TrainerAdapter
from nat_finetune.registry import register_trainer_adapter


@register_trainer_adapter(config_type=TRLTrainerAdapterConfig)
async def trl_trainer_adapter(config: TRLTrainerAdapterConfig, builder: Builder) -> AsyncIterator[TrainerAdapter]:
    """Make the policy trainable by TRL; what it runs goes on when this process ends."""
    from nat_finetune_plugins.trl.adapter import TRLTrainerAdapter

    yield TRLTrainerAdapter(
        config,
        await builder.get_policy(),
        target=builder.target,
        name=builder.entry_name,
        seed=builder.seed,
        folder=builder.folder,
    )
