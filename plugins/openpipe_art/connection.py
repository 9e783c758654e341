"""A server that is connected: known generation, registered model, an inference endpoint, and the target model pointed at it."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nat_finetune_plugins.openpipe_art import canary
from nat_finetune_plugins.openpipe_art.config import ArtTrainerAdapterConfig
from nat_finetune_plugins.openpipe_art.wire import (
    ArtServer,
    Dialect,
    Endpoint,
    Inference,
    TrainableModel,
    reachable,
    served_name,
)
from pydantic import SecretStr

from nat_finetune.errors import BackendError
from nat_finetune.remote.http import Service
from nat_finetune.remote.interfaces import ServedChatModel
from nat_finetune.types import PolicyRef

SERVICE = "OpenPipe ART"
_FILE = "openpipe_art.json"
_QUICK = 10.0
"""Seconds that an endpoint is given to show that it is there already."""


def trainable_model(config: ArtTrainerAdapterConfig) -> TrainableModel:
    """The model of a config; learning rate and KL go with each update instead."""
    backend = config.backend
    blocks = {
        "init_args": backend.init_args or {},
        "engine_args": backend.engine_args or {},
        "trainer_args": config.training.trainer_args,
    }
    return TrainableModel(backend.name, backend.project, backend.base_model, blocks)


def server_config(config: ArtTrainerAdapterConfig) -> dict[str, Any] | None:
    """ART's `OpenAIServerConfig`, with the key that the endpoint demands; None where nothing is set."""
    backend = config.backend
    given = {} if backend.server_config is None else backend.server_config.model_dump(exclude_none=True)
    key = backend.api_key.get_secret_value()
    if key != "default":
        given = {**given, "server_args": {**given.get("server_args", {}), "api_key": key}}
    return given or None


@dataclass(slots=True)
class Connection:
    """The server and what is served there."""

    server: ArtServer
    url: str
    dialect: Dialect
    model: TrainableModel
    endpoint: Endpoint
    inference: Inference
    target: ServedChatModel
    policy: PolicyRef
    """Whom the target model's calls are recorded as."""
    start_step: int
    step: int
    """The server's, as it was last asked."""
    answer: canary.Answer | None = None
    """The canary's of the current step."""

    @property
    def current_step(self) -> int:
        """The step of the current policy."""
        return self.start_step + self.policy.version

    @property
    def name(self) -> str:
        """The name under which the current policy is served."""
        return served_name(self.model, self.dialect, self.current_step)

    @property
    def serves_it(self) -> bool:
        """Whether the current policy can be sampled from: of 0.4.11 the newest step only."""
        return not self.dialect.newest_only or self.current_step == self.step

    async def ask_step(self) -> int:
        """The server's newest step."""
        self.step = await self.server.step(self.model, self.dialect)
        return self.step

    def point(self, version: int) -> None:
        """From now on the target model's calls reach the step of that version, or fail: never another one."""
        step = self.start_step + version
        name = f"{self.model.name}@{step}"
        self.policy = PolicyRef(self.policy.llm, version, name)
        asked = self.name if self.serves_it else name
        key = self.endpoint.api_key
        self.target.served_at(base_url=self.endpoint.base_url, model=asked, api_key=key, policy=self.policy)

    async def ask_canary(self) -> canary.Answer:
        """What the current policy answers."""
        self.answer = await canary.ask(self.inference, self.name)
        return self.answer

    def require_equal_steps(self) -> None:
        """Refuse to go on where the server's model is not the one of this run.

        Raises:
            BackendError: says which steps, and what to do.
        """
        if self.step != self.current_step:
            raise BackendError(
                f"{self.url}: {self.model.project}/{self.model.name} is at step {self.step}, this run at step "
                f"{self.current_step} (start_step {self.start_step} and {self.policy.version} updates). {self._advice()}"
            )

    def _advice(self) -> str:
        if self.step < self.current_step:
            return "The server has lost checkpoints of this run, or is another one: bring them back, or start a new run"
        if self.policy.version == 0:
            return f"Another run has trained it: take another backend.name, or train on from there with start_step: {self.step}"
        return "Something else has trained it meanwhile: what it learned is not this run's; start a new run under another name"


async def connect(
    config: ArtTrainerAdapterConfig, target: ServedChatModel, llm: str, folder: Path | None
) -> tuple[Connection, Service]:
    """Register, find or start the endpoint, and point the target model at it.

    Raises:
        BackendError: the server is not there, not ART, or its model is not this run's.
    """
    backend = config.backend
    host = f"[{backend.ip}]" if ":" in backend.ip else backend.ip
    service = Service(SERVICE, f"http://{host}:{backend.port}", timeout=config.request_timeout, secrets=[backend.api_key])
    try:
        server = ArtServer(service, backend.ip)
        await server.health()
        dialect = await server.dialect()
        model = trainable_model(config)
        await server.register(model, dialect)
        step = await server.step(model, dialect)
        before = _before(folder)
        name = served_name(model, dialect, step)
        endpoint = await _running_endpoint(config, dialect, before, name)
        if endpoint is None:
            endpoint = await server.prepare(model, dialect, server_config(config))
        inference, policy = _inference(config, endpoint), PolicyRef(llm, 0)
        made = Connection(
            server, service.base_url, dialect, model, endpoint, inference, target, policy, backend.start_step, step
        )
        if folder is not None and before is None:
            made.require_equal_steps()
        _keep(folder, endpoint)
        made.point(0)
        made.answer = await canary.ask(inference, name)
    except BaseException:
        await service.close()
        raise
    return made, service


def _inference(config: ArtTrainerAdapterConfig, endpoint: Endpoint, *, timeout: float | None = None) -> Inference:
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    secrets: list[SecretStr | str | None] = [endpoint.api_key, config.backend.api_key]
    wait = timeout or config.request_timeout
    retries = 4 if timeout is None else 0
    return Inference(
        Service(f"{SERVICE}'s endpoint", endpoint.base_url, headers=headers, timeout=wait, secrets=secrets, retries=retries)
    )


def _before(folder: Path | None) -> dict[str, Any] | None:
    """What an earlier process of this run wrote down; None: this is the first."""
    path = None if folder is None else folder / _FILE
    if path is None or not path.exists():
        return None
    with suppress(ValueError):
        found = json.loads(path.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}


def _keep(folder: Path | None, endpoint: Endpoint) -> None:
    if folder is not None:
        (folder / _FILE).write_text(json.dumps({"inference": endpoint.base_url}) + "\n", encoding="utf-8")


async def _running_endpoint(
    config: ArtTrainerAdapterConfig, dialect: Dialect, before: dict[str, Any] | None, name: str
) -> Endpoint | None:
    """The endpoint that this run used before, or that the config names, if it serves the model: preparing starts another."""
    given = config.backend.server_config
    port = ((given.server_args if given else None) or {}).get("port", 8000 if dialect.newest_only else None)
    urls = [(before or {}).get("inference"), None if port is None else f"http://0.0.0.0:{port}/v1"]
    for url in dict.fromkeys(url for url in urls if isinstance(url, str)):
        endpoint = Endpoint(reachable(url, config.backend.ip), config.backend.api_key.get_secret_value())
        inference = _inference(config, endpoint, timeout=_QUICK)
        try:
            if name in await inference.names():
                return endpoint
        except BackendError:
            continue
        finally:
            await inference.close()
    return None
