"""Request bodies as nemo-microservices 1.5 and Hugging Face's hub document them: anything else is refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException

Name = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[\w.+@-]+$")]
RepositoryName = Annotated[str, Field(min_length=1, max_length=96, pattern=r"^[A-Za-z0-9_]+(([.-]|\.-|-\.)[A-Za-z0-9_]+)*$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Fields = dict[str, str]


class Body(BaseModel):
    """No key beside those that are documented, no value of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())


class Namespace(Body):
    """POST /v1/namespaces."""

    id: Name
    description: str | None = None
    custom_fields: Fields | None = None


class Repository(Body):
    """POST /v1/hf/api/repos/create."""

    name: RepositoryName
    organization: Name
    type: Literal["dataset", "model"]
    private: bool | None = None


class Dataset(Body):
    """POST /v1/datasets."""

    name: Name
    namespace: Name
    files_url: Annotated[str, Field(pattern=r"^hf://datasets/[^/]+/[^/]+$")]
    description: str | None = None
    format: str | None = None
    project: str | None = None
    custom_fields: Fields | None = None


class PreuploadFile(Body):
    """A file that is announced."""

    path: Annotated[str, Field(min_length=1)]
    sample: str
    size: Annotated[int, Field(ge=0)]


class Preupload(Body):
    """POST .../preupload/main."""

    files: Annotated[list[PreuploadFile], Field(min_length=1)]
    gitAttributes: str | None = None


class CommitHeader(Body):
    """The first line of a commit."""

    summary: Annotated[str, Field(min_length=1)]
    description: str = ""
    parentCommit: str | None = None


class CommitFile(Body):
    """A file inside a commit."""

    content: str
    path: Annotated[str, Field(min_length=1)]
    encoding: Literal["base64"]


class CommitLarge(Body):
    """A large file of a commit."""

    path: Annotated[str, Field(min_length=1)]
    algo: Literal["sha256"]
    oid: Sha256
    size: Annotated[int, Field(ge=0)]


class LargeObject(Body):
    """A large file that is announced."""

    oid: Sha256
    size: Annotated[int, Field(ge=0)]


class Ref(Body):
    """A branch."""

    name: Name


class LargeBatch(Body):
    """POST .../info/lfs/objects/batch."""

    operation: Literal["upload"]
    transfers: list[Literal["basic", "multipart", "xet"]]
    objects: Annotated[list[LargeObject], Field(min_length=1)]
    hash_algo: Literal["sha256"]
    ref: Ref | None = None


class DPO(Body):
    """The knobs of DPO."""

    ref_policy_kl_penalty: float | None = None
    preference_loss_weight: float | None = None
    preference_average_log_probs: bool | None = None
    sft_loss_weight: float | None = None
    sft_average_log_probs: bool | None = None
    max_grad_norm: float | None = None


class SFT(Body):
    """The knobs of supervised finetuning."""

    attention_dropout: float | None = None
    hidden_dropout: float | None = None


class Lora(Body):
    """A low-rank adapter."""

    adapter_dim: int | None = None
    alpha: int | None = None
    adapter_dropout: float | None = None
    target_modules: list[str] | None = None


class Hyperparameters(Body):
    """How a job trains."""

    finetuning_type: Literal["lora", "lora_merged", "all_weights"]
    training_type: Literal["dpo", "sft", "distillation", "grpo"] = "sft"
    epochs: Annotated[int, Field(ge=1)] | None = None
    batch_size: Annotated[int, Field(ge=1)] | None = None
    learning_rate: Annotated[float, Field(gt=0)] | None = None
    dpo: DPO | None = None
    sft: SFT | None = None
    lora: Lora | None = None
    seed: Annotated[int, Field(ge=0, lt=2**32)] | None = None
    max_steps: int | None = None
    warmup_steps: int | None = None
    weight_decay: float | None = None
    optimizer: (
        Literal["adam_with_cosine_annealing", "adam_with_flat_lr", "adamw_with_cosine_annealing", "adamw_with_flat_lr"] | None
    ) = None
    min_learning_rate: float | None = None
    adam_beta1: float | None = None
    adam_beta2: float | None = None
    log_every_n_steps: int | None = None
    val_check_interval: float | None = None
    sequence_packing_enabled: bool | None = None


class DatasetRef(Body):
    """The dataset of a job."""

    name: Name
    namespace: Name


class Job(Body):
    """POST /v1/customization/jobs."""

    config: Annotated[str, Field(min_length=1)]
    dataset: DatasetRef
    hyperparameters: Hyperparameters
    name: Name | None = None
    namespace: Name | None = None
    output_model: str | None = None
    description: str | None = None
    project: str | None = None
    custom_fields: Fields | None = None


class Nim(Body):
    """An image and its size."""

    image_name: Annotated[str, Field(min_length=1)]
    image_tag: Annotated[str, Field(min_length=1)]
    gpu: Annotated[int, Field(ge=1)]


class DeploymentConfig(Body):
    """POST /v1/deployment/configs."""

    name: Name
    namespace: Name
    description: str | None = None
    model: str
    nim_deployment: Nim


class Deployment(Body):
    """POST /v1/deployment/model-deployments."""

    name: Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")]
    namespace: Name
    description: str | None = None
    config: Annotated[str, Field(pattern=r"^[^/]+/[^/]+$")]


BodyT = TypeVar("BodyT", bound=Body)


def checked(model: type[BodyT], value: Any) -> BodyT:
    """The body; 422 with what is wrong, as the services answer it."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problems = [{"loc": list(one["loc"]), "msg": one["msg"], "type": one["type"]} for one in error.errors()]
        raise HTTPException(422, detail=repr(problems)) from None


def row_problem(row: Any, training_type: str) -> str | None:
    """Why a row of a training file is not what the customizer trains on; None: it is."""
    if not isinstance(row, dict):
        return "it is no object"
    if training_type == "dpo":
        if row.keys() != {"prompt", "chosen_response", "rejected_response"}:
            return f"its keys are {sorted(row)}"
        if not all(isinstance(row[key], str) for key in ("chosen_response", "rejected_response")):
            return "a response is no text"
        return None if isinstance(row["prompt"], str) else _messages_problem(row["prompt"])
    problem = _messages_problem(row.get("messages")) if row.keys() == {"messages"} else f"its keys are {sorted(row)}"
    return problem or (None if row["messages"][-1]["role"] == "assistant" else "it does not end with the assistant")


def _messages_problem(messages: Any) -> str | None:
    if not isinstance(messages, list) or not messages:
        return "there are no messages"
    for message in messages:
        if not isinstance(message, dict) or message.keys() != {"role", "content"}:
            return "a message is not role and content"
        if message["role"] not in ("system", "user", "assistant") or not isinstance(message["content"], str):
            return f"a message is of {message['role']!r}, or its content is no text"
    return None
