"""The settings of `local_trainer_adapter`: every knob of the update, and which of them the chosen combination would ignore."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from nat_finetune.algorithms.presets import PRESETS, Preset
from nat_finetune.config.component import ItemKind, Section, TrainerAdapterConfig
from nat_finetune.local.settings import (
    Importance,
    LoopSettings,
    LoraSettings,
    OptimiserSettings,
    PolicyGradientSettings,
    PreferenceSettings,
    UpdateSettings,
)

PresetName = Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo", "reinforce", "rloo"]


class ImportanceConfig(Section):
    """Correction for a sampler whose logprobs are not the trainer's (another precision, another engine)."""

    mode: Literal["truncate_tokens", "mask_tokens", "truncate_sequences", "mask_sequences", "mask_sequences_by_mean"]
    """Bound the weight of each token or sequence, or leave those outside the bounds out."""
    low: float = Field(0.0, ge=0)
    high: float = Field(2.0, gt=0)

    @model_validator(mode="after")
    def _ordered(self) -> ImportanceConfig:
        if self.low > self.high:
            raise ValueError(f"low must not be above high: {self.low} and {self.high}")
        return self


class PolicyGradientConfig(Section):
    """GRPO and its relatives: `name` is a preset, every other key replaces one of its choices."""

    name: PresetName
    """A named set of choices; docs/algorithms.md lists them."""
    baseline: Literal["mean", "leave_one_out"] | None = None
    """What a reward is compared with inside its group. Here and below, null: as the preset has it."""
    scale: Literal["group", "batch", "none"] | None = None
    """The deviation that it is divided by."""
    eps: float | None = Field(None, ge=0)
    """Added to the deviation."""
    ratio: Literal["token", "sequence"] | None = None
    """Of probabilities, new to old: per token, or the geometric mean over the sequence."""
    surrogate: Literal["clipped", "cispo", "reinforce"] | None = None
    """PPO's bound; the clipped ratio as a weight without gradient; or no ratio at all."""
    clip_low: float | None = Field(None, ge=0, le=1)
    """Distance below ratio 1."""
    clip_high: float | None = Field(None, ge=0)
    """Distance above ratio 1."""
    dual_clip: float | None = Field(None, gt=1)
    """A token with negative advantage costs at most this many times its advantage."""
    ratio_cap: float | None = Field(None, gt=1)
    """The ratio is held below this even where the clip would not bind."""
    reduction: Literal["token_mean", "sequence_mean", "rollout_mean", "constant_length"] | None = None
    """What counts equally: tokens, rows, rollouts, or no length in any denominator."""
    length_limit: int | None = Field(None, ge=1)
    """Tokens: the constant of `reduction: constant_length` (the most that a sequence trains), and the limit of the overlong
    penalty (the most that a rollout samples)."""
    kl_coefficient: float | None = Field(None, ge=0)
    """Weight of the KL to the policy as it was before training; 0 needs no reference."""
    kl_estimator: Literal["k1", "k2", "k3"] | None = None
    kl_gradient: Literal["direct", "score_function"] | None = None
    """Of the expression as it stands, or of the KL in expectation."""
    overlong_buffer_share: float | None = Field(None, ge=0, le=1)
    """Share of `length_limit` in which the penalty on long answers grows; 0: no penalty."""
    overlong_penalty: float | None = Field(None, ge=0)
    """What an answer at the limit loses, in units of reward."""
    importance: ImportanceConfig | None = None
    """Absent: no correction."""

    def preset(self) -> Preset:
        """All choices, resolved."""
        given = {
            name: value
            for name, value in self.model_dump(exclude={"name", "importance", "length_limit"}).items()
            if value is not None
        }
        chosen = {**_as_dict(PRESETS[self.name]), **given}
        if chosen["surrogate"] == "reinforce":
            chosen |= {name: given.get(name) for name in ("clip_low", "clip_high")}
        if not chosen["overlong_buffer_share"]:
            chosen["overlong_buffer_share"] = None
        return Preset(**chosen)

    def settings(self) -> PolicyGradientSettings:
        """All of this, as the local backend wants it."""
        chosen = self.importance
        correction = None if chosen is None else Importance(chosen.mode, chosen.low, chosen.high)
        return PolicyGradientSettings(self.preset(), self.length_limit, correction)

    @model_validator(mode="after")
    def _fits(self) -> PolicyGradientConfig:
        chosen = self.preset()
        problems = [
            *self._ignored(chosen),
            *(
                ["clip_low and clip_high are needed: the preset has none"]
                if chosen.surrogate != "reinforce" and (chosen.clip_low is None or chosen.clip_high is None)
                else []
            ),
            *(
                [f"ratio_cap must be above 1 + clip_high = {1 + chosen.clip_high:g}"]
                if chosen.ratio_cap is not None and chosen.clip_high is not None and chosen.ratio_cap <= 1 + chosen.clip_high
                else []
            ),
            *self._length(chosen),
        ]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _ignored(self, chosen: Preset) -> list[str]:
        """What is set and would have no effect."""
        unused: dict[str, str] = {}
        if chosen.surrogate == "reinforce":
            unused |= dict.fromkeys(
                ("clip_low", "clip_high", "dual_clip", "ratio_cap", "ratio"), "surrogate: reinforce has no ratio"
            )
        if chosen.surrogate == "cispo":
            unused |= dict.fromkeys(("dual_clip", "ratio_cap"), "cispo's weights are bounded already")
        if chosen.scale == "none":
            unused["eps"] = "scale: none divides by nothing"
        if not chosen.kl_coefficient:
            unused |= dict.fromkeys(("kl_estimator", "kl_gradient"), "kl_coefficient is 0")
        if chosen.overlong_buffer_share is None:
            unused["overlong_penalty"] = "there is no overlong_buffer_share"
        given = self.model_fields_set
        return [f"{name} would be ignored: {why}" for name, why in unused.items() if name in given and _set(self, name)]

    def _length(self, chosen: Preset) -> list[str]:
        users = [
            *(["reduction: constant_length"] if chosen.reduction == "constant_length" else []),
            *(["the overlong penalty"] if chosen.overlong_buffer_share is not None else []),
        ]
        if users and self.length_limit is None:
            most = "the most tokens that a rollout may sample (llms.NAME.max_tokens for workflows of one call)"
            return [f"{' and '.join(users)} of {self.name} needs length_limit: {most}"]
        if not users and self.length_limit is not None:
            return ["length_limit would be ignored: only reduction: constant_length and the overlong penalty use it"]
        return []


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


Algorithm = Annotated[PolicyGradientConfig | PreferenceConfig, Field(discriminator="name")]


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


def _as_dict(preset: Preset) -> dict[str, object]:
    return {name: getattr(preset, name) for name in Preset.__dataclass_fields__}


def _set(config: Section, name: str) -> bool:
    return getattr(config, name) is not None


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
    max_tokens_per_microbatch: int | None = Field(None, ge=1)
    """Memory: tokens, padding included, that the model reads in one forward and backward pass; null: 1024 on a CPU, 8192 on a
    GPU. Changes results by rounding only."""
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

    def settings(self) -> UpdateSettings:
        """All of this, as the local backend wants it."""
        own = {field.name for field in fields(OptimiserSettings)} - {"eps"}
        return UpdateSettings(
            algorithm=self.algorithm.settings(),
            optimiser=OptimiserSettings(**{name: getattr(self, name) for name in own}),
            loop=LoopSettings(**{field.name: getattr(self, field.name) for field in fields(LoopSettings)}),
            lora=None if self.lora is None else self.lora.settings(),
            max_length=self.max_length,
            agreement_bound=self.agreement.bound,
            agreement_rows=self.agreement.rows,
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
        if self.epochs > 1 and not isinstance(algorithm, PreferenceConfig) and algorithm.preset().surrogate == "reinforce":
            raise ValueError("epochs must be 1 for surrogate: reinforce, which is right for fresh samples only")
        return self
