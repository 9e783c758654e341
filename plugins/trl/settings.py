"""The settings of `trl_trainer_adapter`: what TRL is told, and which Python runs it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from nat_finetune.config.component import FilePath, ItemKind, Section, TrainerAdapterConfig
from nat_finetune.errors import Problem


class DpoConfig(Section):
    """TRL's `DPOTrainer`, on preference pairs."""

    name: Literal["dpo"]
    beta: float | None = Field(None, gt=0)
    """How much a nat of distance from the reference costs. Null: 0.1."""
    ref_policy_kl_penalty: float | None = Field(None, gt=0)
    """NAT's name of `beta`; give one of both."""
    loss: Literal["sigmoid", "sigmoid_norm", "robust", "hinge", "ipo"] = "sigmoid"
    """`sigmoid_norm` and `ipo` look at the mean log-probability of a completion's tokens, the others at the sum."""
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    """Share of labels believed to be wrong; for `robust`."""

    @property
    def strength(self) -> float:
        """beta, by whichever name it was given."""
        return next((value for value in (self.beta, self.ref_policy_kl_penalty) if value is not None), 0.1)

    @model_validator(mode="after")
    def _fits(self) -> DpoConfig:
        if self.beta is not None and self.ref_policy_kl_penalty is not None:
            raise ValueError("beta and ref_policy_kl_penalty are two names of one setting: give one")
        if self.label_smoothing and self.loss != "robust":
            raise ValueError(f"label_smoothing would be ignored: TRL's loss {self.loss} does not use it")
        return self


class SftConfig(Section):
    """TRL's `SFTTrainer`, on demonstrations: the loss is that of the completions' tokens, their mean."""

    name: Literal["sft"]


class GroupsConfig(Section):
    """TRL's `GRPOTrainer`, which asks for rollouts as it needs them; needs `_type: backend_trainer`."""

    name: Literal["grpo", "gdpo"]
    """`gdpo`: each reward is compared inside its group by itself (`multi_objective_aggregation: normalize_then_sum`)."""
    scale: Literal["group", "batch", "none"] = "group"
    """The deviation that a reward's distance from the group's mean is divided by; not for `gdpo`, which has its own."""
    ratio: Literal["token", "sequence"] = "token"
    """Of probabilities, new to old: per token, or the geometric mean over the sequence."""
    clip_low: float = Field(0.2, ge=0, le=1)
    clip_high: float = Field(0.2, ge=0)
    ratio_cap: float | None = Field(None, gt=1)
    """The ratio is held below this even where the clip would not bind (TRL's `delta`)."""
    reduction: Literal["token_mean", "sequence_mean", "constant_length"] = "token_mean"
    """What counts equally: tokens, rollouts, or no length in any denominator."""
    length_limit: int | None = Field(None, ge=1)
    """Tokens: the constant of `reduction: constant_length`."""
    kl_coefficient: float = Field(0.0, ge=0)
    """Weight of the KL (k3) to the policy as it was before the job."""
    several_segments: Literal["fail", "longest", "sample"] = "fail"
    """TRL trains one prompt with one completion a rollout. Where a rollout's calls don't extend one another: fail, or train the
    longest segment, or one drawn with the seed; what is left out is counted."""

    @model_validator(mode="after")
    def _fits(self) -> GroupsConfig:
        if self.name == "gdpo" and "scale" in self.model_fields_set:
            raise ValueError(
                "scale would be ignored: gdpo divides each reward by its group's deviation, and the sum by the batch's"
            )
        if (self.reduction == "constant_length") != (self.length_limit is not None):
            raise ValueError("reduction: constant_length needs length_limit, and nothing else uses it")
        return self


Algorithm = Annotated[DpoConfig | SftConfig | GroupsConfig, Field(discriminator="name")]


class LoraConfig(Section):
    """A low-rank adapter, drawn here as `local_trainer_adapter` draws it."""

    rank: int = Field(16, ge=1)
    alpha: float = Field(32.0, gt=0)
    """The adapter's output is scaled by alpha / rank."""
    target_modules: Literal["all-linear"] | tuple[Annotated[str, Field(min_length=1)], ...] = "all-linear"
    """Endings of module names; `all-linear` is every linear layer but the output layer."""


# fmt: off
OWNED = frozenset((
    "output_dir", "seed", "data_seed", "learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps",
    "warmup_ratio", "max_grad_norm", "weight_decay", "adam_beta1", "adam_beta2", "optim", "num_train_epochs", "max_steps",
    "per_device_train_batch_size", "gradient_accumulation_steps", "gradient_checkpointing", "bf16", "fp16", "use_cpu",
    "report_to", "save_strategy", "eval_strategy", "logging_steps", "logging_strategy", "beta", "loss_type", "loss_weights",
    "label_smoothing", "max_length", "num_generations", "generation_batch_size", "steps_per_generation", "num_iterations",
    "epsilon", "epsilon_high", "delta", "importance_sampling_level", "scale_rewards", "reward_weights",
    "multi_objective_aggregation", "temperature", "max_completion_length", "use_vllm", "remove_unused_columns",
    "completion_only_loss", "disable_dropout", "shuffle_dataset", "precompute_ref_log_probs", "truncation_mode",
    "model_init_kwargs",
))
# fmt: on
"""Arguments of TRL's that keys of this config, the builder or the run decide."""


class TRLTrainerAdapterConfig(TrainerAdapterConfig, name="trl_trainer_adapter"):
    """TRL on a `_type: local` model, in a Python environment of its own: DPO, SFT, GRPO and GDPO, LoRA or all weights."""

    remote: ClassVar[bool] = True
    needs_local_model: ClassVar[bool] = True

    python: FilePath
    """The Python of an environment that has TRL, such as `/opt/trl/bin/python`."""
    algorithm: Algorithm
    """`{name: dpo}` takes preference pairs, `{name: sft}` demonstrations, `{name: grpo}` and `{name: gdpo}` groups."""
    lora: LoraConfig | None = None
    """Absent: all weights are trained."""
    learning_rate: float = Field(gt=0)
    epochs: int = Field(1, ge=1)
    """Passes over a job's pairs or demonstrations; of groups, updates on the same rollouts (`num_iterations`)."""
    batch_size: int | None = Field(None, ge=1)
    """Pairs, demonstrations or rollouts of one optimiser step; null: all that there are, of groups all of a step."""
    micro_batch_size: int | None = Field(None, ge=1)
    """How many of them the model reads at once; null: all of the optimiser step."""
    max_grad_norm: float = Field(1.0, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    betas: tuple[float, float] = (0.9, 0.999)
    """Of AdamW. Each job begins with a fresh one."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate falls after warm-up, to 0 at the end of the job."""
    warmup_steps: int = Field(0, ge=0)
    """Optimiser steps in which the learning rate rises to its full value."""
    activation_checkpointing: bool = False
    """Less memory for about a third more time."""
    max_length: int | None = Field(None, ge=2)
    """Longer pairs and demonstrations are dropped as `too_long`; null: what the model was made for."""
    on_too_long: Literal["drop", "fail"] = "drop"
    agreement_bound: float | None = Field(None, gt=0)
    """Nats between TRL and our engine on the same tokens at the trained weights; null: by the model's dtype."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of TRL's config class, as they are."""
    any_version: bool = False
    """Also run with other versions than those that the scripts were tested with."""
    grace_seconds: float = Field(30.0, gt=0)
    """From SIGTERM to SIGKILL, when a job is cancelled."""
    poll_seconds: float = Field(1.0, gt=0)
    timeout_seconds: float | None = Field(None, gt=0)
    """For one job; after it the job goes on and can be attached again."""

    def takes(self) -> frozenset[ItemKind]:
        """Pairs for `dpo`, demonstrations for `sft`, else groups."""
        kinds: dict[str, ItemKind] = {"dpo": "pair", "sft": "demonstration"}
        return frozenset([kinds.get(self.algorithm.name, "group")])

    def runs_rollouts(self) -> bool:
        """With groups: TRL samples, and asks for the rollouts."""
        return isinstance(self.algorithm, GroupsConfig)

    def lacks(self) -> Problem | None:
        """Its Python."""
        if Path(self.python).is_file() and os.access(self.python, os.X_OK):
            return None
        hint = (
            "name the Python of an environment with trl 1.16: `make trl` makes .cache/trl; or pip install 'trl==1.16.*' peft "
            "datasets; the shipped configs take its Python from NAT_FINETUNE_TRL_PYTHON"
        )
        return Problem(f"{self.python} is no program on this machine", "python", hint=hint)

    def resolved_algorithm(self) -> dict[str, Any]:
        """Every choice of the update."""
        if isinstance(self.algorithm, DpoConfig):
            named = self.algorithm.model_dump(exclude={"name", "beta", "ref_policy_kl_penalty"})
            return {"name": "dpo", "beta": self.algorithm.strength, **named}
        unused = {"scale"} if self.algorithm.name == "gdpo" else set()
        return self.algorithm.model_dump(exclude_none=True, exclude=unused)

    def compares_rewards_apart(self) -> bool:
        """With `gdpo`."""
        return self.algorithm.name == "gdpo"

    @model_validator(mode="after")
    def _fits(self) -> TRLTrainerAdapterConfig:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must be from 0 to below 1: {list(self.betas)}")
        if self.micro_batch_size is not None and (self.batch_size or 0) % self.micro_batch_size:
            raise ValueError(f"batch_size {self.batch_size} must be a multiple of micro_batch_size {self.micro_batch_size}")
        owned = sorted(OWNED & self.overrides.keys())
        if owned:
            raise ValueError(f"overrides.{owned[0]} is not yours to set: another key of this config, or the run, decides it")
        if self.runs_rollouts():
            for key in ("max_length", "on_too_long"):
                if key in self.model_fields_set:
                    raise ValueError(f"{key} would be ignored: the llm's max_tokens and context bound what is sampled")
        return self
