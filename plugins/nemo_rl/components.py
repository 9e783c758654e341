"""What this plugin registers."""

from __future__ import annotations

from collections.abc import AsyncIterator

from nat_finetune_plugins.nemo_rl.settings import NemoRLTrainerAdapterConfig

from nat_finetune.interfaces import Builder, TrainerAdapter
from nat_finetune.registry import register_trainer_adapter


@register_trainer_adapter(config_type=NemoRLTrainerAdapterConfig)
async def nemo_rl_trainer_adapter(config: NemoRLTrainerAdapterConfig, builder: Builder) -> AsyncIterator[TrainerAdapter]:
    """Make the adapter; nothing is started."""
    from nat_finetune_plugins.nemo_rl.adapter import NemoRLTrainerAdapter
    from nat_finetune_plugins.nemo_rl.launchers import make_launcher

    adapter = NemoRLTrainerAdapter(
        config,
        make_launcher(config, builder.entry_name),
        target=builder.target,
        name=builder.entry_name,
        seed=builder.seed,
        folder=builder.folder,
    )
    try:
        yield adapter
    finally:
        await adapter.close()
