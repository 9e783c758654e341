"""`local_trainer_adapter`: the update is computed in this process, on the weights that sample."""

from __future__ import annotations

from collections.abc import AsyncIterator

from nat_finetune.adapters.local_settings import LocalTrainerAdapterConfig
from nat_finetune.interfaces import Builder, TrainerAdapter
from nat_finetune.registry import register_trainer_adapter


@register_trainer_adapter(config_type=LocalTrainerAdapterConfig)
async def local_trainer_adapter(config: LocalTrainerAdapterConfig, builder: Builder) -> AsyncIterator[TrainerAdapter]:
    """Make the policy trainable; an adapter, if there is one, is sampled from at once (it changes nothing yet)."""
    from nat_finetune.local.jobs import LocalTrainerAdapter

    adapter = LocalTrainerAdapter(
        config.settings(),
        await builder.get_policy(),
        target=builder.target,
        name=builder.entry_name,
        seed=builder.seed,
        folder=builder.folder,
    )
    try:
        yield adapter
    finally:
        await adapter.close()
