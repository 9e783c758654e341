"""The config of `nemo_customizer_trainer_adapter`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self
from urllib.parse import urlsplit

from nat_finetune_plugins.nemo_customizer.settings import DeploymentSettings, Hyperparameters
from pydantic import Field, SecretStr, field_validator, model_validator

from nat_finetune.config.component import ItemKind, Text, TrainerAdapterConfig
from nat_finetune.remote.addresses import require_address, require_headers
from nat_finetune.remote.secrets import checked_key, require_kept


class NeMoCustomizerTrainerAdapterConfig(TrainerAdapterConfig, name="nemo_customizer_trainer_adapter"):
    """DPO or supervised finetuning by NVIDIA NeMo Customizer: uploads the data, submits a job, deploys the model if wished."""

    remote: ClassVar[bool] = True
    starts_from_base: ClassVar[bool] = True
    weighs_items: ClassVar[bool] = False

    entity_host: str
    """Entity store, customizer and deployment service: NeMo's platform address."""
    datastore_host: str
    """Its data store."""
    hf_token: SecretStr | None = None
    """Sent to the data store as a bearer token, where it asks for one; empty: no header."""
    api_key: SecretStr | None = None
    """Sent to `entity_host` as a bearer token, where a gateway asks for one."""
    headers: Mapping[str, SecretStr] = Field(default_factory=dict)
    """Further headers for both hosts; secrets as `${VAR}` of the environment."""
    verify_ssl: bool = True
    request_timeout_seconds: float = Field(60.0, gt=0)
    """For one request; an upload gets longer by its size."""
    namespace: str = Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    dataset_name: str = Field("nat-dpo", min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    """What the datasets' names begin with; each has the run's name and a digest of its data behind it."""
    dataset_output_dir: Text | None = None
    """Training and validation file are written to `<dir>/<run>/`. Null: into the run folder."""
    create_namespace_if_missing: bool = True
    customization_config: str = Field(min_length=1)
    """The service's name of model and hardware, such as `meta/llama-3.2-1b-instruct@v1.0.0+A100`."""
    hyperparameters: Hyperparameters = Hyperparameters()
    validation_split: float = Field(0.2, ge=0, lt=1)
    """Share of the rows that the service validates on: whole examples, and never a context that is trained. 0: the service
    takes a tenth of the rows, whatever examples they are of."""
    use_full_message_history: bool | None = None
    """Null: prompts are as the policy saw them, texts where all came as texts, else messages. true: always messages. false: the
    last message's text alone, as NAT's default has it: another prompt than the policy saw, where there was more."""
    output_model: str | None = Field(None, pattern=r"^[^/\s]+/[^/\s]+$")
    """`namespace/name` of the trained model. Null: the service names it."""
    deploy_on_completion: bool = False
    deployment_config: DeploymentSettings = DeploymentSettings()
    poll_interval_seconds: float = Field(30.0, gt=0)
    job_timeout_seconds: float | None = Field(None, gt=0)
    """How long a job is waited for; it goes on when that is over, and can be attached to. Null: as long as it takes."""
    deployment_timeout_seconds: float = Field(1800.0, gt=0)
    max_consecutive_status_failures: int = Field(3, ge=1, le=10)

    def takes(self) -> frozenset[ItemKind]:
        """Pairs for `dpo`; demonstrations, or pairs for their chosen side, for `sft`."""
        return frozenset({"pair"} if self.hyperparameters.training_type == "dpo" else {"pair", "demonstration"})

    def resolved_algorithm(self) -> dict[str, Any]:
        """The hyperparameters that are sent; those of a block in their own right."""
        sent = self.hyperparameters.body(seed=0)
        blocks = {name: block for name, block in sent.items() if isinstance(block, Mapping)}
        own = {name: value for name, value in sent.items() if name not in {"training_type", *blocks}}
        if self.hyperparameters.seed is None:
            del own["seed"]
        inside = {f"{name}.{key}": value for name, block in blocks.items() for key, value in block.items()}
        return {"name": self.hyperparameters.training_type, **own, **inside}

    @field_validator("entity_host", "datastore_host")
    @classmethod
    def _address(cls, value: str) -> str:
        url = urlsplit(value)
        if "@" in url.netloc or url.query or url.fragment:
            raise ValueError("the address of a host has no user, query or fragment; secrets go into api_key or headers")
        return require_address(value).rstrip("/")

    @field_validator("hf_token", "api_key")
    @classmethod
    def _token(cls, value: SecretStr | None) -> SecretStr | None:
        token = checked_key("" if value is None else value.get_secret_value(), "the token")
        return SecretStr(require_kept(token, "the token")) if token else None

    @field_validator("headers")
    @classmethod
    def _headers(cls, value: Mapping[str, SecretStr]) -> Mapping[str, SecretStr]:
        require_headers(value, authorization="api_key and hf_token are")
        return value

    @model_validator(mode="after")
    def _used(self) -> Self:
        if self.deploy_on_completion and self.deployment_config.image_name is None:
            raise ValueError(
                "deploy_on_completion needs deployment_config.image_name: the image that serves this model, such as "
                "nvcr.io/nim/meta/llama-3.1-8b-instruct"
            )
        if not self.deploy_on_completion:
            for name in ("deployment_config", "deployment_timeout_seconds"):
                if name in self.model_fields_set:
                    raise ValueError(f"{name} would be ignored: deploy_on_completion is false")
        if self.hyperparameters.training_type == "sft" and self.use_full_message_history is False:
            raise ValueError("use_full_message_history: false would be ignored: training_type sft takes whole conversations")
        return self
