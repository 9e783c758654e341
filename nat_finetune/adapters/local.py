"""`local_trainer_adapter`: the update is computed in this process, on the weights that sample."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from nat_finetune.adapters.local_settings import AgreementConfig, Algorithm, LoraConfig, PreferenceConfig
from nat_finetune.config.component import ItemKind, TrainerAdapterConfig
from nat_finetune.interfaces import Builder, TrainerAdapter
from nat_finetune.registry import register_trainer_adapter


class LocalTrainerAdapterConfig(TrainerAdapterConfig, name="local_trainer_adapter"):
    """GRPO and its relatives, or DPO, on a `_type: local` model: LoRA or all weights, AdamW, in this process."""

    needs_local_model: ClassVar[bool] = True

    algorithm: Algorithm
    """`{name: grpo}` or a relative takes groups, `{name: dpo}` takes preference pairs; docs/algorithms.md has every knob."""
    lora: LoraConfig | None = None
    """Absent: all weights are trained."""
    learning_rate: float = Field(gt=0)
    epochs: int = Field(1, ge=1)
    """Passes over a collection in one update."""
    batch_size: int | None = Field(None, ge=1)
    """Trajectories or pairs of one optimiser step; null: the whole collection."""
    max_tokens_per_microbatch: int = Field(2048, ge=1)
    """Memory: tokens, padding included, of one forward and backward pass. Changes results by rounding only."""
    max_grad_norm: float = Field(1.0, gt=0)
    """A longer gradient is scaled down to this norm."""
    weight_decay: float = Field(0.0, ge=0)
    """Of matrices; never of biases and norms."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Of AdamW."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate falls after warm-up, by optimiser steps of the whole run."""
    warmup_steps: int = Field(0, ge=0)
    """Optimiser steps in which the learning rate rises to its full value."""
    total_steps: int | None = Field(None, ge=1)
    """Optimiser steps of the whole run, at the end of which a falling schedule reaches 0."""
    activation_checkpointing: bool = False
    """Less memory for about a third more time."""
    max_length: int | None = Field(None, ge=2)
    """Longer trajectories and pairs are dropped as `too_long`; null: what the model was made for."""
    agreement: AgreementConfig = AgreementConfig()
    """How far sampler and trainer may be apart."""

    def takes(self) -> frozenset[ItemKind]:
        """Pairs for `name: dpo`, else groups."""
        return frozenset(["pair" if isinstance(self.algorithm, PreferenceConfig) else "group"])

    @model_validator(mode="after")
    def _fits(self) -> LocalTrainerAdapterConfig:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must be from 0 to below 1: {list(self.betas)}")
        if self.schedule == "constant" and self.total_steps is not None:
            raise ValueError("total_steps would be ignored: only schedule: linear and cosine use it")
        if self.schedule != "constant" and self.total_steps is None:
            raise ValueError(f"schedule: {self.schedule} needs total_steps: updates of the run times optimiser steps of each")
        if self.total_steps is not None and self.warmup_steps >= self.total_steps:
            raise ValueError(f"warmup_steps must be below total_steps: {self.warmup_steps} and {self.total_steps}")
        algorithm = self.algorithm
        if self.epochs > 1 and not isinstance(algorithm, PreferenceConfig) and algorithm.preset().surrogate == "reinforce":
            raise ValueError("epochs must be 1 for surrogate: reinforce, which is right for fresh samples only")
        return self


@register_trainer_adapter(config_type=LocalTrainerAdapterConfig)
async def local_trainer_adapter(config: LocalTrainerAdapterConfig, builder: Builder) -> AsyncIterator[TrainerAdapter]:
    """Make the policy trainable; an adapter, if there is one, is sampled from at once (it changes nothing yet)."""
    from nat_finetune.adapters.local_jobs import LocalTrainerAdapter

    adapter = LocalTrainerAdapter(
        config, await builder.get_policy(), target=builder.target, name=builder.entry_name, seed=builder.seed
    )
    try:
        yield adapter
    finally:
        await adapter.close()
