"""The wire of an `art run` server: the only place that knows its paths and bodies, in both generations.

ART has no version on its wire, so that a server is asked what it takes: its `/openapi.json` (FastAPI writes it) lists paths and
fields. 0.4.11 deletes checkpoints at `/_delete_checkpoints` and calls the KL coefficient `beta`; 0.5.x has
`/_delete_checkpoint_files` and `kl_penalty_coef`, which its loss reads from `dev_config` and its trainer from `config`: it goes
into both, or there would be no KL. 0.5.x serves each step as `name@step`; 0.4.11 serves the newest one, under the name alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from nat_finetune.errors import BackendError, ServiceError
from nat_finetune.remote.http import Service

PREPARE_SECONDS = 1800.0
"""The server loads a model and starts vLLM in this request."""
_ANYWHERE = ("0.0.0.0", "::", "[::]", "localhost", "127.0.0.1")
"""Hosts that mean the machine of the server, said by itself."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """What the server takes."""

    generation: str
    """`0.4` or `0.5`."""
    kl_key: str
    """Name of the KL coefficient in a train request."""
    kl_in_dev_config: bool
    """Whether the loss reads it there."""
    delete_path: str

    @property
    def newest_only(self) -> bool:
        """Whether only the newest step can be sampled from."""
        return self.generation == "0.4"


@dataclass(frozen=True, slots=True)
class TrainableModel:
    """What a request says of the model."""

    name: str
    project: str
    base_model: str
    internal_config: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """`init_args`, `engine_args`, `trainer_args`."""

    def body(self, dialect: Dialect) -> dict[str, Any]:
        """As the server's own model of it dumps it; where inference is, the server knows itself."""
        common: dict[str, Any] = {
            "name": self.name,
            "project": self.project,
            "config": None,
            "trainable": True,
            "inference_api_key": None,
            "inference_base_url": None,
            "inference_model_name": None,
            "base_model": self.base_model,
            "_internal_config": {key: dict(value) for key, value in self.internal_config.items() if value} or None,
        }
        if dialect.newest_only:
            return common
        return common | {"entity": None, "id": None, "run_id": None, "base_path": ".art", "report_metrics": None}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the server serves the model; the key is no part of any message."""

    base_url: str
    api_key: str


def train_body(
    model: TrainableModel, dialect: Dialect, groups: Sequence[Mapping[str, Any]], *, learning_rate: float, kl: float
) -> dict[str, Any]:
    """The body of a train request."""
    return {
        "model": model.body(dialect),
        "trajectory_groups": list(groups),
        "config": {"learning_rate": learning_rate, dialect.kl_key: kl},
        "dev_config": {dialect.kl_key: kl} if dialect.kl_in_dev_config and kl > 0 else {},
        "verbose": False,
    }


class ArtServer:
    """Asks an `art run` server."""

    def __init__(self, service: Service, host: str) -> None:
        self._service = service
        self._host = host

    async def health(self) -> None:
        """Raise BackendError unless the server says that it is well."""
        found = await self._service.get("/healthcheck")
        if found != {"status": "ok"}:
            url = self._service.base_url
            raise BackendError(
                f"{url}/healthcheck answered {found!r}, expected {{'status': 'ok'}}: is that an `art run` server?"
            )

    async def dialect(self) -> Dialect:
        """What the server takes, by its own description.

        Raises:
            BackendError: it is no ART server, or of a generation that is not known.
        """
        return read_dialect(await self._service.get("/openapi.json"), self._service.base_url)

    async def register(self, model: TrainableModel, dialect: Dialect) -> None:
        """Make the model known; doing it twice is the same as once."""
        await self._service.post("/register", json=model.body(dialect), retry=True)

    async def prepare(self, model: TrainableModel, dialect: Dialect, server_config: Mapping[str, Any] | None) -> Endpoint:
        """Load the model, start its inference endpoint, and say where that is.

        Never repeated where it may have arrived: 0.5.x would start a second endpoint.
        """
        body = {"model": model.body(dialect), "config": server_config}
        try:
            found = await self._service.post("/_prepare_backend_for_training", json=body, timeout=PREPARE_SECONDS)
        except ServiceError as error:
            if not error.transient:
                raise
            after = "the server may have loaded the model all the same: see its log, then go on (a run by run --resume)"
            raise ServiceError(f"{error}; {after}", status=error.status, body=error.body, transient=True) from error
        if not (isinstance(found, list) and len(found) == 2 and all(isinstance(part, str) for part in found)):
            raise BackendError(f"{self._service.base_url}: prepare answered no [base_url, api_key] pair")
        return Endpoint(reachable(found[0], self._host), found[1])

    async def step(self, model: TrainableModel, dialect: Dialect) -> int:
        """The newest step of the model on the server."""
        found = await self._service.post("/_get_step", json=model.body(dialect), retry=True)
        if type(found) is not int:
            raise BackendError(f"{self._service.base_url}/_get_step answered {found!r}, expected a whole number")
        return found

    async def delete_checkpoints(self, model: TrainableModel, dialect: Dialect, keep: Iterable[int]) -> None:
        """Delete checkpoints but those; 0.4.11 decides itself: it keeps the newest and the one of the best training reward."""
        if dialect.newest_only:
            asked = {"benchmark": "train/reward", "benchmark_smoothing": 1.0}
            await self._service.post(dialect.delete_path, json=model.body(dialect), params=asked, retry=True)
            return
        body = {"model": model.body(dialect), "steps_to_keep": sorted(set(keep))}
        await self._service.post(dialect.delete_path, json=body, retry=True)

    async def train(self, body: Mapping[str, Any], *, idle_timeout: float) -> AsyncIterator[dict[str, float]]:
        """Send a train request: the metrics of each optimiser step as they come; never repeated where it may have begun.

        Raises:
            ServiceError: refused, or the stream broke off.
        """
        async for line in self._service.stream_lines("POST", "/_train_model", json=body, idle_timeout=idle_timeout):
            if not isinstance(line, dict):
                raise ServiceError(f"{self._service.base_url}/_train_model: expected metrics, found {str(line)[:80]!r}")
            yield {str(key): float(value) for key, value in line.items() if isinstance(value, int | float)}


class Inference:
    """Asks the endpoint where the server serves the model."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def names(self) -> list[str]:
        """Under which names something is served."""
        found = await self._service.get("/models")
        entries = found.get("data") if isinstance(found, Mapping) else None
        if not isinstance(entries, list):
            raise BackendError(f"{self._service.base_url}/models answered no list of models")
        return [str(entry.get("id")) for entry in entries if isinstance(entry, Mapping)]

    async def chat(self, body: Mapping[str, Any]) -> Any:
        """A chat completion."""
        return await self._service.post("/chat/completions", json=dict(body), retry=True)

    async def close(self) -> None:
        """Drop the connections."""
        await self._service.close()


def read_dialect(description: Any, where: str) -> Dialect:
    """What a server takes, of its OpenAPI description.

    Raises:
        BackendError: it is no ART server, or of a generation that is not known.
    """
    paths = _part(description, "paths")
    schemas = _part(_part(description, "components"), "schemas")
    configs = [set(_part(schema, "properties")) for name, schema in schemas.items() if name.endswith("TrainConfig")]
    taken = [keys for keys in configs if "learning_rate" in keys]
    further = set[str]().union(*(keys for keys in configs if "learning_rate" not in keys))
    kl = [key for key in ("kl_penalty_coef", "beta") if any(key in keys for keys in taken)]
    delete = {"0.5": "/_delete_checkpoint_files", "0.4": "/_delete_checkpoints"}
    known = [generation for generation, path in delete.items() if path in paths]
    if "/_train_model" not in paths or not kl or len(known) != 1:
        raise BackendError(
            f"{where} is no ART server that nat-finetune knows (0.4.11 and 0.5.x): of its /openapi.json, paths "
            f"{sorted(paths)[:12]} and keys of a train request {sorted(set().union(*taken))}"
        )
    return Dialect(known[0], kl[0], kl[0] in further, delete[known[0]])


def _part(described: Any, key: str) -> Mapping[str, Any]:
    """An object inside an object, empty where it is no object: whoever answered may be anything."""
    part = described.get(key) if isinstance(described, Mapping) else None
    return part if isinstance(part, Mapping) else {}


def served_name(model: TrainableModel, dialect: Dialect, step: int) -> str:
    """The name under which a step is served."""
    return model.name if dialect.newest_only else f"{model.name}@{step}"


def reachable(base_url: str, host: str) -> str:
    """The address as it is reached from here: a server that listens everywhere calls itself 0.0.0.0."""
    parts = urlsplit(base_url)
    if parts.hostname not in _ANYWHERE:
        return base_url
    shown = f"[{host}]" if ":" in host else host
    return urlunsplit(parts._replace(netloc=shown if parts.port is None else f"{shown}:{parts.port}"))
