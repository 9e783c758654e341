"""The settings of `nemo_rl_trainer_adapter`: what is trained, where, and how the job is started."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from nat_finetune.config.component import FilePath, ItemKind, ModelSource, OutputPath, Section, Text, TrainerAdapterConfig
from nat_finetune.errors import Problem
from nat_finetune.remote.addresses import require_address, require_headers
from nat_finetune.remote.secrets import checked_key, require_kept

NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"
Address = Annotated[str, Field(pattern=r"^https?://[^/\s@?#]+$"), AfterValidator(require_address)]


class DpoConfig(Section):
    """NeMo RL's DPO: the sigmoid loss, which is the only one that it has."""

    name: Literal["dpo"]
    beta: float | None = Field(None, gt=0)
    """How much a nat of distance from the reference costs. Null: 0.1, as with `local_trainer_adapter`."""
    ref_policy_kl_penalty: float | None = Field(None, gt=0)
    """NAT's name of `beta`; give one of both."""
    loss: Literal["sigmoid", "sigmoid_norm"] = "sigmoid"
    """`sigmoid_norm` looks at the mean log-probability of a completion's tokens, `sigmoid` at the sum."""
    preference_loss_weight: float = Field(1.0, ge=0)
    sft_loss_weight: float = Field(0.0, ge=0)
    """Weight of the chosen completion's negative log-likelihood, added to the loss."""
    sft_average_log_probs: bool = False
    """Whether that is a mean over tokens instead of a sum."""
    batch_size: int = Field(128, ge=1)
    """Pairs of one optimiser step. NeMo RL trains whole batches only: with fewer pairs it would do nothing."""

    @property
    def strength(self) -> float:
        """beta, by whichever name it was given."""
        return next((value for value in (self.beta, self.ref_policy_kl_penalty) if value is not None), 0.1)

    @model_validator(mode="after")
    def _fits(self) -> DpoConfig:
        if self.beta is not None and self.ref_policy_kl_penalty is not None:
            raise ValueError("beta and ref_policy_kl_penalty are two names of one setting: give one")
        if self.sft_average_log_probs and not self.sft_loss_weight:
            raise ValueError("sft_average_log_probs would be ignored: sft_loss_weight is 0")
        if not self.preference_loss_weight and not self.sft_loss_weight:
            raise ValueError("preference_loss_weight and sft_loss_weight are both 0: nothing would be trained")
        return self


class RolloutsConfig(Section):
    """Where NeMo Gym asks for rollouts: `nat-finetune serve-rollouts` with this config."""

    url: Address
    """As the cluster's nodes reach it, such as `http://10.0.0.5:8900`."""
    timeout_seconds: float = Field(1800.0, gt=0)
    """For one rollout."""
    retries: int = Field(2, ge=0)
    """Further tries of a rollout whose reward stayed unknown. NeMo RL knows no unknown reward: after them its step fails."""
    several_segments: Literal["fail", "longest"] = "fail"
    """NeMo RL trains one growing conversation a rollout. Where calls of a rollout don't extend one another: fail, or train the
    longest conversation and count what is left out."""


class GroupsConfig(Section):
    """NeMo RL's GRPO, or GDPO: each reward is compared inside its group by itself."""

    name: Literal["grpo", "gdpo"]
    rollouts: RolloutsConfig
    kl_beta: float = Field(0.0, ge=0)
    """Weight of the KL to the reference (k3)."""
    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: float = Field(0.2, gt=0)
    normalize_rewards: bool = True
    """Whether advantages are divided by the group's standard deviation."""
    reduction: Literal["token_mean", "sequence_mean"] = "token_mean"
    temperature: float = Field(1.0, gt=0)
    """NeMo RL's; its endpoint refuses calls at another one, so a target llm of another `temperature` is refused."""
    max_new_tokens: int | None = Field(None, ge=1)
    """Of one call at most; null: whatever `max_length` leaves."""
    gym_folder: Text = "3rdparty/Gym-workspace/Gym"
    """NeMo Gym below the checkout, or anywhere by an absolute path."""
    tool_parser: Text | None = None
    """vLLM's parser of tool calls, such as `hermes`; null: the workflow calls no tools through the endpoint."""
    gpu_memory_utilization: float = Field(0.6, gt=0, lt=1)
    """Share of a GPU's memory that vLLM takes while it shares the GPUs with the trainer."""


Algorithm = Annotated[DpoConfig | GroupsConfig, Field(discriminator="name")]


class SubprocessConfig(Section):
    """On this machine, in a process group of its own that outlives nat-finetune."""

    name: Literal["subprocess"]
    grace_seconds: float = Field(30.0, gt=0)
    """From SIGTERM to SIGKILL, when the job is cancelled."""


class RayJobsConfig(Section):
    """On a Ray cluster, through its Jobs API. That API runs whatever it is given: on loopback or behind a token only."""

    name: Literal["ray_jobs"]
    url: Address = "http://127.0.0.1:8265"
    """The head node's dashboard."""
    token: SecretStr | None = None
    """Sent as `Authorization: Bearer`. Null: that of RAY_AUTH_TOKEN, if it is set."""
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    """Further ones, such as a proxy's."""
    verify_tls: bool = True
    num_cpus: float | None = Field(None, ge=0)
    """CPUs that the driver itself takes; its workers take theirs by placement groups."""
    runtime_env: dict[str, Any] = Field(default_factory=dict)
    """Ray's, such as `{pip: [...]}`. Variables go into `env_vars` of the adapter, not in here."""

    @field_validator("runtime_env")
    @classmethod
    def _no_variables(cls, value: dict[str, Any]) -> dict[str, Any]:
        if "env_vars" in value:
            raise ValueError("env_vars does not belong here: name the variables in the adapter's `env_vars`")
        if "working_dir" in value and "://" not in str(value["working_dir"]):
            raise ValueError("working_dir must be a URI: files are not uploaded, the checkout lies on the cluster")
        return value

    @model_validator(mode="after")
    def _sent(self) -> RayJobsConfig:
        if self.token is not None:
            require_kept(checked_key(self.token.get_secret_value(), "the token"), "the token")
        require_headers(self.headers, authorization=None if self.token is None else "token is")
        return self


Launch = Annotated[SubprocessConfig | RayJobsConfig, Field(discriminator="name")]


class LoraConfig(Section):
    """A low-rank adapter on all linear layers."""

    rank: int = Field(16, ge=1)
    alpha: float = Field(32.0, gt=0)
    """The adapter's output is scaled by alpha / rank."""
    dropout: float = Field(0.0, ge=0, lt=1)


class ClusterConfig(Section):
    """What NeMo RL asks of Ray: more than there is makes its setup fail."""

    nodes: int = Field(1, ge=1)
    gpus_per_node: int = Field(1, ge=1)
    tensor_parallel: int = Field(1, ge=1)
    context_parallel: int = Field(1, ge=1)

    @property
    def replicas(self) -> int:
        """Data-parallel copies of the model."""
        return self.nodes * self.gpus_per_node // (self.tensor_parallel * self.context_parallel)

    @model_validator(mode="after")
    def _fits(self) -> ClusterConfig:
        gpus, each = self.nodes * self.gpus_per_node, self.tensor_parallel * self.context_parallel
        if gpus % each:
            raise ValueError(f"{gpus} GPUs are no multiple of tensor_parallel times context_parallel, {each}")
        return self


class NemoRLTrainerAdapterConfig(TrainerAdapterConfig, name="nemo_rl_trainer_adapter"):
    """NeMo RL, in a checkout or container of its own: DPO on pairs; GRPO and GDPO, whose rollouts it asks for itself."""

    remote: ClassVar[bool] = True
    starts_from_base: ClassVar[bool] = True

    checkout: str = Field(pattern=r"^/")
    """Folder of NeMo RL's repository, where the job runs: on this machine, on the cluster, or in its container."""
    launch: Launch
    """`{name: subprocess}` or `{name: ray_jobs, url: ...}`."""
    model: ModelSource
    """Hub id or folder, as the cluster sees it."""
    tokenizer: FilePath | None = None
    """Folder of the tokenizer on this machine, to know how long pairs are; null: that of `model` if it lies here already."""
    algorithm: Algorithm
    """`{name: dpo}` takes preference pairs; `{name: grpo}` and `{name: gdpo}` run the rollouts themselves, under
    `_type: backend_trainer`."""
    learning_rate: float = Field(gt=0)
    weight_decay: float = Field(0.0, ge=0)
    betas: tuple[float, float] = (0.9, 0.999)
    """Of AdamW."""
    warmup_steps: int = Field(0, ge=0)
    """Optimiser steps in which the learning rate rises to its full value."""
    max_grad_norm: float = Field(1.0, gt=0)
    epochs: int = Field(1, ge=1)
    """Passes over the pairs."""
    max_steps: int | None = Field(None, ge=1)
    """Optimiser steps at most."""
    micro_batch_size: int = Field(1, ge=1)
    """Pairs or rollouts that one GPU takes at once."""
    max_length: int = Field(2048, ge=16)
    """Tokens of prompt and completion. NeMo RL masks longer pairs with no more than a warning; here they are dropped as
    `too_long` first, where the tokenizer is at hand."""
    on_too_long: Literal["drop", "fail"] = "drop"
    pair_weights: Literal["sample", "refuse"] = "sample"
    """Its file has no place for weights. Where pairs weigh differently: draw one of each candidate set, or refuse."""
    validation_share: float = Field(0.0, ge=0, lt=1)
    """Of the pairs: held out for NeMo RL, which keeps the checkpoint with the lowest loss on them. 0: the last one is taken."""
    save_every: int | None = Field(None, ge=1)
    """Optimiser steps between checkpoints, and between validations; null: at the end only."""
    keep_checkpoints: int = Field(3, ge=1)
    lora: LoraConfig | None = None
    """Absent: all weights are trained."""
    backend: Literal["dtensor", "megatron"] = "dtensor"
    """What NeMo RL trains with: FSDP2 by Automodel, or Megatron-Core, for the largest models."""
    precision: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    cluster: ClusterConfig = ClusterConfig()
    """Nodes, GPUs and how the model is spread over them."""
    command: tuple[Annotated[str, Field(min_length=1)], ...] = Field(("uv", "run"), min_length=1)
    """What runs a script of the checkout; in NeMo RL's container `[python, -u]`."""
    workspace: OutputPath | None = None
    """Folder for data, configs and checkpoints, which this machine and the cluster share; null: in the run folder."""
    workspace_on_cluster: str | None = Field(None, pattern=r"^/")
    """The same folder as the cluster sees it, where its path is another one there."""
    env_vars: tuple[Annotated[str, Field(pattern=NAME)], ...] = ()
    """Names of environment variables that a Ray job gets from here, such as HF_TOKEN. Ray's head node knows their values."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Further keys of NeMo RL's config by dotted path, such as
    `policy.dtensor_cfg.activation_checkpointing: true`."""
    poll_seconds: float = Field(10.0, gt=0)
    timeout_seconds: float | None = Field(None, gt=0)
    """For the whole job; after it the job goes on and can be attached again."""
    max_poll_failures: int = Field(30, ge=1)
    """Questions in a row without an answer before it is given up."""

    def takes(self) -> frozenset[ItemKind]:
        """Pairs for `name: dpo`, else groups."""
        return frozenset(["pair" if isinstance(self.algorithm, DpoConfig) else "group"])

    def sampling_temperature(self) -> float | None:
        """Of groups: NeMo RL's."""
        return self.algorithm.temperature if isinstance(self.algorithm, GroupsConfig) else None

    def lacks(self) -> Problem | None:
        """The checkout, where jobs run on this machine."""
        examples = Path(self.checkout) / "examples"
        if not isinstance(self.launch, SubprocessConfig) or examples.is_dir():
            return None
        return Problem(f"{examples}: no such folder", "checkout", hint="give NeMo RL's repository on this machine")

    def resolved_algorithm(self) -> dict[str, Any]:
        """Every choice of the update."""
        chosen = self.algorithm.model_dump(exclude={"beta", "ref_policy_kl_penalty", "rollouts", "gym_folder", "tool_parser"})
        if isinstance(self.algorithm, DpoConfig):
            chosen = {"name": "dpo", "beta": self.algorithm.strength, **chosen}
        return chosen

    def runs_rollouts(self) -> bool:
        """With `name: grpo` or `gdpo`."""
        return isinstance(self.algorithm, GroupsConfig)

    def compares_rewards_apart(self) -> bool:
        """With `name: gdpo`."""
        return self.algorithm.name == "gdpo"

    @model_validator(mode="after")
    def _fits(self) -> NemoRLTrainerAdapterConfig:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must be from 0 to below 1: {list(self.betas)}")
        if self.workspace_on_cluster is not None and self.workspace is None:
            raise ValueError("workspace_on_cluster would be ignored: give workspace, the same folder as this machine sees it")
        if isinstance(self.launch, SubprocessConfig):
            for key in ("workspace_on_cluster", "env_vars"):
                if getattr(self, key):
                    raise ValueError(f"{key} would be ignored: a subprocess sees this machine's files and variables")
        if isinstance(self.algorithm, DpoConfig):
            step = self.cluster.replicas * self.micro_batch_size
            if self.algorithm.batch_size % step:
                raise ValueError(
                    f"algorithm.batch_size {self.algorithm.batch_size} must be a multiple of {step}: "
                    f"{self.cluster.replicas} copies of the model times micro_batch_size {self.micro_batch_size}"
                )
        else:
            for key in ("validation_share", "pair_weights", "on_too_long", "tokenizer", "epochs"):
                if getattr(self, key) != type(self).model_fields[key].default:
                    why = "finetuning.num_epochs says it" if key == "epochs" else "it is about preference pairs"
                    raise ValueError(f"{key} would be ignored with algorithm {self.algorithm.name}: {why}")
        owned = OWNED | (OWNED_BY_DPO if isinstance(self.algorithm, DpoConfig) else {})
        for key in self.overrides:
            owner = next((name for name in owned if f"{key}.".startswith(f"{name}.") or name.startswith(f"{key}.")), None)
            if owner is not None:
                raise ValueError(f"overrides.{key} is not yours to set: {owned[owner]}")
        return self


OWNED = {
    "data": "the files are its own",
    "env": "the environment is its own",
    "cluster": "see cluster",
    "checkpointing.checkpoint_dir": "see workspace",
    "checkpointing.enabled": "the result is a checkpoint",
    "logger.log_dir": "see workspace",
    "dpo.seed": "see finetuning.seed",
    "grpo.seed": "see finetuning.seed",
    "grpo.use_leave_one_out_baseline": "it must be false; the generated config says why",
    "grpo.adv_estimator": "see algorithm",
    "policy.train_global_batch_size": "see algorithm.batch_size",
    "policy.model_name": "see model",
    "policy.dtensor_cfg.enabled": "see backend",
    "policy.megatron_cfg.enabled": "see backend",
    "policy.max_total_sequence_length": "see max_length",
}
"""Keys of NeMo RL's config that have a place of their own here."""
OWNED_BY_DPO = {
    "policy.sequence_packing": "NeMo RL's DPO refuses it",
    "policy.dynamic_batching": "NeMo RL's DPO refuses it",
    "policy.generation": "DPO generates nothing",
    "grpo": "algorithm is dpo",
    "loss_fn": "algorithm is dpo",
}
