"""What an update can be told, as plain data; nothing here needs torch, so that a config can be turned into it at any time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nat_finetune.algorithms.presets import Preset

ALL_LINEAR = "all-linear"


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """The adapter that is attached to the model."""

    rank: int = 16
    alpha: float = 32.0
    """The adapter's output is scaled by `alpha / rank`."""
    target_modules: str | tuple[str, ...] = ALL_LINEAR
    """Endings of module names; `all-linear` is every linear layer but the output layer."""


@dataclass(frozen=True, slots=True)
class OptimiserSettings:
    """AdamW (arXiv:1711.05101) and what surrounds it."""

    learning_rate: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    """Of matrices; never of biases and norms."""
    max_grad_norm: float = 1.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0
    total_steps: int | None = None
    """Optimiser steps of the whole run, at which `linear` and `cosine` reach 0."""


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """How an update goes over its items."""

    epochs: int = 1
    batch_size: int | None = None
    """Items of an optimiser step; None: all."""
    max_tokens_per_microbatch: int | Literal["auto"] = "auto"
    """Tokens that the model reads at once; `auto`: see `local.budget`."""
    activation_checkpointing: bool = False


@dataclass(frozen=True, slots=True)
class Importance:
    """Correction for a sampler that is not the trainer: see `algorithms.importance`."""

    mode: str
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PolicyGradientSettings:
    """Every choice of a policy-gradient update."""

    preset: Preset
    length_limit: int | None = None
    """Tokens: the constant of `constant_length`, and the limit of the overlong penalty."""
    importance: Importance | None = None

    @property
    def needs_reference(self) -> bool:
        """Whether the policy is held against the untrained one."""
        return bool(self.preset.kl_coefficient)


@dataclass(frozen=True, slots=True)
class PreferenceSettings:
    """Every choice of a DPO update; meanings are in `algorithms.dpo`."""

    loss: str = "sigmoid"
    beta: float = 0.1
    label_smoothing: float = 0.0
    preference_loss_weight: float = 1.0
    sft_loss_weight: float = 0.0
    sft_average_log_probs: bool = False

    @property
    def needs_reference(self) -> bool:
        """Always."""
        return True


@dataclass(frozen=True, slots=True)
class SupervisedSettings:
    """Every choice of a supervised update."""

    reduction: str = "token_mean"

    @property
    def needs_reference(self) -> bool:
        """Never."""
        return False


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    """All that the local backend is told about its updates."""

    algorithm: PolicyGradientSettings | PreferenceSettings | SupervisedSettings
    optimiser: OptimiserSettings
    loop: LoopSettings = LoopSettings()
    lora: LoraSettings | None = None
    """None: all weights are trained."""
    max_length: int | None = None
    """Tokens; None: what the model was made for."""
    on_too_long: str = "drop"
    """`drop`, `fail` or `truncate_prompt`; a completion is never cut."""
    agreement_bound: float | None = None
    """Nats; None: by the model's dtype."""
    agreement_rows: int = 8
    agreement_tokens: int = 256
