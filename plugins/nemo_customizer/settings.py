"""NAT's keys of NeMo Customizer, what they are refused for, and what NAT leaves out."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from nat_finetune.config.component import Section

Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, lt=1)]


class DPOSettings(Section):
    """The service's knobs of DPO."""

    ref_policy_kl_penalty: float = Field(0.1, ge=0)
    """beta: how much distance from the base model costs."""
    preference_loss_weight: float = Field(1.0, ge=0)
    preference_average_log_probs: bool = False
    """Whether log-probabilities are means over a completion's tokens instead of sums."""
    sft_loss_weight: float = Field(0.0, ge=0)
    """Weight of the chosen completion's negative log-likelihood, added to the loss."""
    sft_average_log_probs: bool | None = None
    """Whether that is a mean over tokens. Null: the service's default."""
    max_grad_norm: Positive | None = None
    """Null: the service's default."""

    @model_validator(mode="after")
    def _trains(self) -> Self:
        if not self.preference_loss_weight and not self.sft_loss_weight:
            raise ValueError("preference_loss_weight and sft_loss_weight are both 0: nothing would be trained")
        if self.sft_average_log_probs is not None and not self.sft_loss_weight:
            raise ValueError("sft_average_log_probs would be ignored: sft_loss_weight is 0")
        if self.preference_average_log_probs and not self.preference_loss_weight:
            raise ValueError("preference_average_log_probs would be ignored: preference_loss_weight is 0")
        return self


class SFTSettings(Section):
    """The service's knobs of supervised finetuning. Null: as the model has it."""

    attention_dropout: Share | None = None
    hidden_dropout: Share | None = None


class LoraSettings(Section):
    """A low-rank adapter. Null: the service's default for the model."""

    adapter_dim: int | None = Field(None, ge=1)
    """Its rank, a power of 2."""
    alpha: int | None = Field(None, ge=1)
    """The adapter's output is scaled by alpha / adapter_dim."""
    adapter_dropout: Share | None = None
    target_modules: tuple[Annotated[str, Field(min_length=1)], ...] | None = None
    """The service's names of layers, with wildcards: `linear_qkv`, `*_proj`, ..."""

    @field_validator("adapter_dim")
    @classmethod
    def _power_of_two(cls, value: int | None) -> int | None:
        if value is not None and value & (value - 1):
            raise ValueError(f"the service takes powers of 2, found {value}")
        return value


Optimizer = Literal[
    "adam_with_cosine_annealing", "adam_with_flat_lr", "adamw_with_cosine_annealing", "adamw_with_flat_lr"
]  # fmt: skip


class Hyperparameters(Section):
    """How the service trains. Null means that the service decides, by its own default for the model."""

    training_type: Literal["sft", "dpo"] = "dpo"
    """`dpo` takes preference pairs; `sft` takes demonstrations, and of pairs the chosen completions that nothing beats."""
    finetuning_type: Literal["lora", "lora_merged", "all_weights"] = "all_weights"
    epochs: int = Field(3, ge=1)
    batch_size: int = Field(4, ge=1)
    learning_rate: float = Field(5e-5, gt=0)
    dpo: DPOSettings = DPOSettings()
    sft: SFTSettings | None = None
    lora: LoraSettings | None = None
    seed: int | None = Field(None, ge=0, lt=2**31)
    """Of the service's training. Null: derived from `finetuning.seed`."""
    max_steps: int | None = Field(None, ge=1)
    warmup_steps: int | None = Field(None, ge=0)
    weight_decay: float | None = Field(None, ge=0)
    optimizer: Optimizer | None = None
    min_learning_rate: Positive | None = None
    """Where cosine annealing ends; below `learning_rate`."""
    adam_beta1: Share | None = None
    adam_beta2: Share | None = None
    log_every_n_steps: int | None = Field(None, ge=1)
    val_check_interval: int | float | None = Field(None, gt=0)
    """Optimiser steps between looks at the validation file, as a whole number; as a fraction from 0.1 to 1, of an epoch."""
    sequence_packing_enabled: bool | None = None

    def body(self, seed: int) -> dict[str, Any]:
        """As a job holds them: what is null is left out, and so is what is of the other training type."""
        found = self.model_dump(exclude_none=True, exclude={"dpo", "sft", "lora"}) | {
            "seed": seed if self.seed is None else self.seed
        }
        blocks = {"dpo": self.dpo if self.training_type == "dpo" else None, "sft": self.sft, "lora": self.lora}
        written = {
            name: block.model_dump(exclude_none=True, mode="json") for name, block in blocks.items() if block is not None
        }
        return found | {name: block for name, block in written.items() if block}

    @model_validator(mode="after")
    def _used(self) -> Self:
        other = {"sft": "dpo", "dpo": "sft"}[self.training_type]
        if other in self.model_fields_set and (other == "dpo" or self.sft is not None):
            raise ValueError(f"{other} would be ignored: training_type is {self.training_type}")
        if self.lora is not None and self.finetuning_type == "all_weights":
            raise ValueError("lora would be ignored: finetuning_type is all_weights")
        annealed = {"min_learning_rate": self.min_learning_rate, "adam_beta1": self.adam_beta1, "adam_beta2": self.adam_beta2}
        if self.optimizer is not None and not self.optimizer.endswith("cosine_annealing"):
            for name in (name for name, value in annealed.items() if value is not None):
                raise ValueError(f"{name} would be ignored: the service uses it with cosine annealing, not {self.optimizer}")
        if self.min_learning_rate is not None and self.min_learning_rate >= self.learning_rate:
            raise ValueError(
                f"min_learning_rate must be below learning_rate: {self.min_learning_rate} and {self.learning_rate}"
            )
        return self

    @model_validator(mode="after")
    def _checks_in_time(self) -> Self:
        interval = self.val_check_interval
        if isinstance(interval, float) and not 0.1 <= interval <= 1:
            raise ValueError(f"val_check_interval is a whole number of steps, or a fraction from 0.1 to 1: found {interval:g}")
        if self.max_steps is not None and isinstance(interval, int) and self.max_steps < interval:
            raise ValueError(f"max_steps must not be less than val_check_interval: {self.max_steps} and {interval}")
        return self


class DeploymentSettings(Section):
    """How the trained model is served."""

    image_name: str | None = Field(None, min_length=1)
    """The NIM image that serves the model, such as `nvcr.io/nim/meta/llama-3.1-8b-instruct`. NAT's default is the image of
    another model, so it has to be named."""
    image_tag: str = Field("latest", min_length=1)
    gpu: int = Field(1, ge=1)
    deployment_name: str | None = Field(None, min_length=1)
    """Null: `nat-deployment-` with the run's name. A fixed one can stand for one run at a time."""
    description: str = "Fine-tuned model deployment"
    inference_url: str | None = None
    """Where the deployed model is asked, up to and with `/v1`, if that is not the address that the service names (which can be
    known inside its cluster only)."""
    inference_api_key: SecretStr | None = None
    """Sent to that address as a bearer token; `${VAR}` of the environment."""

    def nim(self) -> dict[str, Any]:
        """Image and size, as a deployment config holds them."""
        return {"image_name": self.image_name, "image_tag": self.image_tag, "gpu": self.gpu}
