"""What NeMo microservices answer, read into what the adapter uses of it; `wire` has what is said to them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nat_finetune.errors import BackendError


class Answer(BaseModel):
    """Part of an answer; what the service adds is left where it is."""

    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())


class Pagination(Answer):
    """Where a page stands."""

    total_pages: int | None = None


EntryT = TypeVar("EntryT", bound=Answer)


class Page(Answer, Generic[EntryT]):
    """One page of a list."""

    data: tuple[EntryT, ...]
    pagination: Pagination | None = None


class TrainingOption(Answer):
    """A way of training that a config offers."""

    training_type: str
    finetuning_type: str


class Config(Answer):
    """A customization config."""

    name: str | None = None
    namespace: str | None = None
    max_seq_length: int | None = None
    training_options: tuple[TrainingOption, ...] = ()

    @property
    def full_name(self) -> str:
        """As a job names it."""
        return f"{self.namespace}/{self.name}" if self.namespace else str(self.name)


class StatusLog(Answer):
    """What the service noted of a job."""

    updated_at: str | None = None
    message: str | None = None
    detail: str | None = None

    @property
    def line(self) -> str:
        """In one line."""
        said = ": ".join(" ".join(text.split()) for text in (self.message, self.detail) if text)
        return f"{self.updated_at} {said}" if self.updated_at else said


class Value(Answer):
    """A metric at a step."""

    step: int | None = None
    value: float | None = None


class Values(Answer):
    """The metrics by name."""

    train_loss: tuple[Value, ...] | None = None
    val_loss: tuple[Value, ...] | None = None
    train_accuracy: tuple[Value, ...] | None = None
    val_accuracy: tuple[Value, ...] | None = None


class Metrics(Answer):
    """Around them."""

    metrics: Values | None = None


class Status(Answer):
    """Where a job stands; any of it but the status can be missing."""

    status: str
    created_at: datetime | None = None
    updated_at: datetime | None = None
    percentage_done: float | None = None
    epochs_completed: int | None = None
    steps_completed: int | None = None
    steps_per_epoch: int | None = None
    best_epoch: int | None = None
    train_loss: float | None = None
    val_loss: float | None = None
    elapsed_time: float | None = None
    metrics: Metrics | None = None
    status_logs: tuple[StatusLog, ...] | None = None


class Warned(Answer):
    """What the service has to say of a job."""

    message: str | None = None


class Job(Answer):
    """A customization job."""

    id: str
    output_model: str | None = None
    status: str | None = None
    custom_fields: Mapping[str, Any] | None = None
    warnings: tuple[Warned | str, ...] | None = None


class RegisteredDataset(Answer):
    """A dataset of the entity store."""

    files_url: str
    custom_fields: Mapping[str, Any] | None = None


class UploadMode(Answer):
    """How a file is to be uploaded; `oid` where the branch has the path already."""

    path: str
    mode: str = Field(alias="uploadMode")
    ignore: bool = Field(False, alias="shouldIgnore")
    oid: str | None = None


class Preupload(Answer):
    """The answer to the announcement of files."""

    files: tuple[UploadMode, ...]


class Action(Answer):
    """A request that the server asks for."""

    href: str
    header: Mapping[str, str] | None = None


class LargeError(Answer):
    """Why a large file is refused."""

    code: int | None = None
    message: str = ""


class LargeObject(Answer):
    """What to do with a large file; no actions: the store has it."""

    oid: str
    size: int
    actions: Mapping[str, Action] | None = None
    error: LargeError | None = None


class LargeBatch(Answer):
    """The answer to the announcement of large files."""

    transfer: str = "basic"
    objects: tuple[LargeObject, ...]


class Commit(Answer):
    """A commit."""

    oid: str = Field(alias="commitOid")


class Revision(Answer):
    """The newest commit of a branch."""

    sha: str


class DeploymentConfig(Answer):
    """How a model is served."""

    model: Any = None


class DeploymentStatus(Answer):
    """Where a deployment stands."""

    status: str
    description: str | None = None


class Deployment(Answer):
    """A served model."""

    status_details: DeploymentStatus
    url: str
    config: Any = None
    models: tuple[str, ...] | None = None

    @property
    def config_name(self) -> str | None:
        """`namespace/name` of its config, which the service gives as a name or in full."""
        if isinstance(self.config, Mapping):
            return f"{self.config.get('namespace')}/{self.config.get('name')}"
        return None if self.config is None else str(self.config)


class ServedModel(Answer):
    """A name under which an endpoint answers."""

    id: str


class ServedModels(Answer):
    """All of them."""

    data: tuple[ServedModel, ...]


AnswerT = TypeVar("AnswerT", bound=Answer)


def read(model: type[AnswerT], body: Any, what: str) -> AnswerT:
    """An answer's body as the part that is used.

    Raises:
        BackendError: it is not what the service is documented to answer; names the field.
    """
    try:
        return model.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the body"
        raise BackendError(
            f"{what} is not what NeMo microservices 1.5 answers: {where}: {first['msg']} (found {first['input']!r:.100}); "
            "is the host that of the service?"
        ) from None


class LogError(Answer):
    """What ended a job's container."""

    message: str | None = None
    explanation: str | None = None


class LogEntry(Answer):
    """One container's output."""

    logs: Mapping[str, Any] | None = None


class ContainerLogs(Answer):
    """A job's own output."""

    entries: Mapping[str, LogEntry] | None = None
    error: LogError | None = None

    @property
    def lines(self) -> list[str]:
        """In lines, each container after the other."""
        texts = [text for entry in (self.entries or {}).values() for text in (entry.logs or {}).values()]
        found = [line for text in texts if isinstance(text, str) for line in text.splitlines() if line.strip()]
        ended = [text for text in (self.error.message, self.error.explanation) if text] if self.error is not None else []
        return found + ended
