"""The config classes: NAT's fields and defaults, and what of ART's own blocks is honoured."""

from __future__ import annotations

from typing import Annotated, Any

from nat_finetune_plugins.openpipe_art.arguments import ENGINE_ARGS, INIT_ARGS, SERVER_ARGS, TRAINER_ARGS, checked
from pydantic import Field, SecretStr, field_validator, model_validator

from nat_finetune.config.component import (
    ItemKind,
    Section,
    Text,
    TrainerAdapterConfig,
    TrainerConfig,
    TrajectoryBuilderConfig,
)
from nat_finetune.remote.addresses import require_address
from nat_finetune.remote.secrets import checked_key, require_kept


class ArtTrajBuilderConfig(TrajectoryBuilderConfig, name="openpipe_art_traj_builder"):
    """Groups of rollouts of one example, with their messages, as ART trains on them."""

    makes = "group"
    token_level = True
    keeps_calls = True

    num_generations: int = Field(2, json_schema_extra={"minimum": 2})
    """Rollouts of each example in a step. NAT takes 1 and compares rollouts of different examples with one another, which is
    noise: at least 2."""

    @property
    def generations(self) -> int:
        """Rollouts that it needs of each example."""
        return self.num_generations

    @field_validator("num_generations")
    @classmethod
    def _something_to_compare(cls, value: int) -> int:
        if value < 2:
            raise ValueError(f"must be at least 2, found {value}: a rollout earns by comparison with others of its own example")
        return value


class ArtServerConfig(Section):
    """ART's `OpenAIServerConfig`: how the inference endpoint is started."""

    log_file: Text | None = None
    """On the server's machine."""
    server_args: dict[str, Any] | None = None
    """Arguments of vLLM's server, such as `port`: without one, 0.5.x takes any free port, and 0.4.11 takes 8000."""
    engine_args: None = None

    @model_validator(mode="before")
    @classmethod
    def _no_engine(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("engine_args") is not None:
            checked({"engine_args": 0}, frozenset(), "server_config")
        return data

    @field_validator("server_args")
    @classmethod
    def _known(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        return checked(value, SERVER_ARGS, "server_config.server_args")


class ArtBackendConfig(Section):
    """Where `art run` listens, and the model that it trains."""

    ip: Annotated[str, Field(pattern=r"^[^\s/@?#]+$")]
    """Host name or address of the server."""
    port: Annotated[int, Field(ge=1, le=65535)]
    """Port of the server (`art run --port`), not of its inference endpoint."""
    name: Annotated[str, Field(pattern=r"^[^\s/@]+$")] = "trainer_run"
    """The model's name on the server. Another run's model of the same name is never trained on unseen (`start_step`)."""
    project: Annotated[str, Field(pattern=r"^[^\s/@]+$")] = "trainer_project"
    base_model: Annotated[str, Field(min_length=1)] = "Qwen/Qwen2.5-7B-Instruct"
    """Hub id, or a folder on the server's machine."""
    api_key: SecretStr = SecretStr("default")
    """The key that the inference endpoint is started with, and asked with."""
    delete_old_checkpoints: bool = False
    """Before each update, delete on the server what no checkpoint of this run needs."""
    start_step: Annotated[int, Field(ge=0)] = 0
    """The step of the server's model at the beginning of the run: another one is refused."""
    init_args: dict[str, Any] | None = None
    """How ART loads the model (`art.dev.InitArgs`)."""
    engine_args: dict[str, Any] | None = None
    """vLLM's engine (`art.dev.EngineArgs`)."""
    server_config: ArtServerConfig | None = None

    @model_validator(mode="before")
    @classmethod
    def _no_secret_by_default(cls, data: Any) -> Any:
        """ART's own key is none: a run's files would hide it from a resume."""
        if isinstance(data, dict) and data.get("api_key") == "default":
            return {key: value for key, value in data.items() if key != "api_key"}
        return data

    @field_validator("ip")
    @classmethod
    def _host_alone(cls, value: str) -> str:
        host = value[1:-1] if value.startswith("[") and value.endswith("]") else value
        try:
            require_address(f"http://[{host}]" if ":" in host else f"http://{host}")
        except ValueError:
            raise ValueError(f"expected a host name or an address, without a port, found {value!r}") from None
        return host

    @field_validator("init_args")
    @classmethod
    def _known_init(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        return checked(value, INIT_ARGS, "init_args")

    @field_validator("engine_args")
    @classmethod
    def _known_engine(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        return checked(value, ENGINE_ARGS, "engine_args")

    @field_validator("api_key")
    @classmethod
    def _fits_a_header(cls, value: SecretStr) -> SecretStr:
        return SecretStr(require_kept(checked_key(value.get_secret_value(), "the key"), "the key"))


class ArtTrainingConfig(Section, extra="allow"):
    """ART's `TrainerArgs`, as far as its training loop honours them."""

    learning_rate: Annotated[float, Field(gt=0)] = 5e-5
    """Sent with each update, as it stands here."""
    beta: Annotated[float, Field(ge=0)] = 0.0
    """KL coefficient, sent with each update: 0.4.11 adds a KL term to the loss, 0.5.x takes it off the advantages."""

    @model_validator(mode="before")
    @classmethod
    def _honoured(cls, data: Any) -> Any:
        own = cls.model_fields.keys()
        checked({k: v for k, v in data.items() if k not in own} if isinstance(data, dict) else None, TRAINER_ARGS, "training")
        return data

    @property
    def trainer_args(self) -> dict[str, Any]:
        """What the server is told once, at registration."""
        return dict(self.model_extra or {})


class ArtTrainerAdapterConfig(TrainerAdapterConfig, name="openpipe_art_trainer_adapter"):
    """Train on an `art run` server (OpenPipe ART 0.4.11 or 0.5.x, which is found out)."""

    remote = True
    needs_calls = True
    serves_target = True

    backend: ArtBackendConfig
    training: ArtTrainingConfig = Field(default_factory=ArtTrainingConfig)
    request_timeout: Annotated[float, Field(gt=0)] = 60.0
    """Seconds for a request but preparing and training."""
    idle_timeout: Annotated[float, Field(gt=0)] = 3600.0
    """Seconds without a line in the stream of an update before it counts as cut off."""
    lost_stream_seconds: Annotated[float, Field(ge=0)] = 60.0
    """Seconds that the server is given to finish an update whose stream was cut off, before the update counts as failed."""

    def takes(self) -> frozenset[ItemKind]:
        """Groups."""
        return frozenset({"group"})

    def resolved_algorithm(self) -> dict[str, Any]:
        """What ART does, as far as this config says it."""
        return {"name": "grpo (ART)", "learning_rate": self.training.learning_rate, "kl_coefficient": self.training.beta}


class ArtTrainerConfig(TrainerConfig, name="openpipe_art_trainer"):
    """Collect, choose (`finetuning.curriculum_learning`), update, collect again: NAT's loop, without keys of its own."""

    fits = frozenset({"group"})
