"""The settings of `local_trainer_adapter`: every knob of the update, and which of them the chosen combination would ignore."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from nat_finetune.adapters.group_settings import PolicyGradientConfig
from nat_finetune.config.component import ItemKind, Section, TrainerAdapterConfig
from nat_finetune.local.settings import (
    LoopSettings,
    LoraSettings,
    OptimiserSettings,
    PreferenceSettings,
    SupervisedSettings,
    UpdateSettings,
)


class PreferenceConfig(Section):
    """DPO and its relatives."""

    name: Literal["dpo"]
    beta: float | None = Field(None, gt=0)
    """How much a nat of distance from the reference costs; smaller goes further. Null: 0.1."""
    ref_policy_kl_penalty: float | None = Field(None, gt=0)
    """NAT's name of `beta`; give one of both."""
    loss: Literal["sigmoid", "sigmoid_norm", "robust", "hinge", "ipo", "ipo_sum"] = "sigmoid"
    """`sigmoid_norm` and `ipo` look at the mean log-probability of a completion's tokens, the others at the sum."""
    label_smoothing: float = Field(0.0, ge=0, le=0.5)
    """Share of labels believed to be wrong; for `sigmoid`, `sigmoid_norm` and `robust`."""
    preference_loss_weight: float = Field(1.0, ge=0)
    sft_loss_weight: float = Field(0.0, ge=0)
    """Weight of the chosen completion's negative log-likelihood, added to the loss."""
    sft_average_log_probs: bool = False
    """Whether that is a mean over tokens instead of a sum."""

    @property
    def strength(self) -> float:
        """beta, by whichever name it was given."""
        return next((value for value in (self.beta, self.ref_policy_kl_penalty) if value is not None), 0.1)

    def resolved(self) -> dict[str, Any]:
        """Every choice, for people to read."""
        return {"name": self.name, "beta": self.strength, **self.model_dump(exclude={"name", "beta", "ref_policy_kl_penalty"})}

    def settings(self) -> PreferenceSettings:
        """All of this, as the local backend wants it."""
        own = {field.name for field in fields(PreferenceSettings)} - {"beta"}
        return PreferenceSettings(beta=self.strength, **{name: getattr(self, name) for name in own})

    @model_validator(mode="after")
    def _fits(self) -> PreferenceConfig:
        if self.beta is not None and self.ref_policy_kl_penalty is not None:
            raise ValueError("beta and ref_policy_kl_penalty are two names of one setting: give one")
        if self.label_smoothing and self.loss not in ("sigmoid", "sigmoid_norm", "robust"):
            raise ValueError(f"label_smoothing would be ignored: loss: {self.loss} does not use it")
        if self.label_smoothing == 0.5 and self.loss == "robust":
            raise ValueError("label_smoothing must be below 0.5 for loss: robust: at 0.5 labels say nothing")
        if self.sft_average_log_probs and not self.sft_loss_weight:
            raise ValueError("sft_average_log_probs would be ignored: sft_loss_weight is 0")
        if not self.preference_loss_weight and not self.sft_loss_weight:
            raise ValueError("preference_loss_weight and sft_loss_weight are both 0: nothing would be trained")
        return self


class SupervisedConfig(Section):
    """Supervised finetuning on demonstrations."""

    name: Literal["sft"]
    reduction: Literal["token_mean", "sequence_mean"] = "token_mean"
    """What counts equally: every token of a completion, or every completion."""

    def resolved(self) -> dict[str, Any]:
        """All choices."""
        return self.model_dump()

    def settings(self) -> SupervisedSettings:
        """All of this, as the local backend wants it."""
        return SupervisedSettings(self.reduction)


Algorithm = Annotated[PolicyGradientConfig | PreferenceConfig | SupervisedConfig, Field(discriminator="name")]


class LoraConfig(Section):
    """A low-rank adapter: a few per cent of the memory of training all weights."""

    rank: int = Field(16, ge=1)
    alpha: float = Field(32.0, gt=0)
    """The adapter's output is scaled by alpha / rank."""
    dropout: float = Field(0.0, ge=0, le=0)
    """0, because the policy that samples must be the one that is trained."""
    target_modules: Literal["all-linear"] | tuple[Annotated[str, Field(min_length=1)], ...] = "all-linear"
    """Endings of module names; `all-linear` is every linear layer but the output layer."""

    def settings(self) -> LoraSettings:
        """All of this, as the local backend wants it."""
        return LoraSettings(self.rank, self.alpha, self.target_modules)


class AgreementConfig(Section):
    """How far sampler and trainer may be apart on the same tokens at the same weights before the run stops."""

    bound: float | None = Field(None, gt=0)
    """Nats. Null: by the model's dtype, 0.001 for float32 and 0.5 for bfloat16."""
    rows: int = Field(8, ge=1)
    """Token sequences that engine and trainer both score after each update."""
    max_tokens: int = Field(256, ge=1)
    """That are read of these sequences together: where they are long there are fewer of them, but always one."""


class LocalTrainerAdapterConfig(TrainerAdapterConfig, name="local_trainer_adapter"):
    """GRPO and its relatives, or DPO, on a `_type: local` model: LoRA or all weights, AdamW, in this process."""

    needs_local_model: ClassVar[bool] = True
    keeps_weights: ClassVar[bool] = True

    algorithm: Algorithm
    """`{name: grpo}` or a relative takes groups, `{name: dpo}` preference pairs, `{name: sft}` demonstrations:
    docs/algorithms.md has every knob."""
    lora: LoraConfig | None = None
    """Absent: all weights are trained."""
    learning_rate: float = Field(gt=0)
    epochs: int = Field(1, ge=1)
    """Passes over a collection in one update."""
    batch_size: int | None = Field(None, ge=1)
    """Trajectories or pairs of one optimiser step; null: the whole collection."""
    max_tokens_per_microbatch: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Memory: tokens, padding included, that the model reads in one forward and backward pass; `auto`: 2048 on a CPU, 8192 on a
    GPU, or what probably fits, halved whenever memory runs out. Changes results by rounding only."""
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
    on_too_long: Literal["drop", "fail", "truncate_prompt"] = "drop"
    """What happens to them: left out and counted, an error, or, of pairs only, the prompt loses its first tokens. A completion
    is never cut: one that alone is too long is dropped."""
    agreement: AgreementConfig = AgreementConfig()
    """How far sampler and trainer may be apart."""

    def takes(self) -> frozenset[ItemKind]:
        """Pairs for `name: dpo`, demonstrations for `name: sft`, else groups."""
        if isinstance(self.algorithm, SupervisedConfig):
            return frozenset(["demonstration"])
        return frozenset(["pair" if isinstance(self.algorithm, PreferenceConfig) else "group"])

    def resolved_algorithm(self) -> dict[str, Any]:
        """The preset with what replaces its choices; DPO's knobs as they are."""
        return self.algorithm.resolved()

    def compares_rewards_apart(self) -> bool:
        """With `advantage: gdpo`."""
        return isinstance(self.algorithm, PolicyGradientConfig) and self.algorithm.preset().advantage == "gdpo"

    def settings(self) -> UpdateSettings:
        """All of this, as the local backend wants it."""
        own = {field.name for field in fields(OptimiserSettings)} - {"eps"}
        return UpdateSettings(
            algorithm=self.algorithm.settings(),
            optimiser=OptimiserSettings(**{name: getattr(self, name) for name in own}),
            loop=LoopSettings(**{field.name: getattr(self, field.name) for field in fields(LoopSettings)}),
            lora=None if self.lora is None else self.lora.settings(),
            max_length=self.max_length,
            on_too_long=self.on_too_long,
            agreement_bound=self.agreement.bound,
            agreement_rows=self.agreement.rows,
            agreement_tokens=self.agreement.max_tokens,
        )

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
        if self.on_too_long == "truncate_prompt" and isinstance(algorithm, PolicyGradientConfig):
            raise ValueError(
                "on_too_long: truncate_prompt is not for groups: sampled tokens belong to the prompt that they followed"
            )
        if self.epochs > 1 and isinstance(algorithm, PolicyGradientConfig) and algorithm.preset().surrogate == "reinforce":
            raise ValueError("epochs must be 1 for surrogate: reinforce, which is right for fresh samples only")
        return self
