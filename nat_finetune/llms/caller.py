"""The target model of a served rollout: its calls go to the endpoint that the rollout's caller named.

A training framework that owns its generation serves the policy itself and asks for rollouts one by one. Which endpoint a call
belongs to is a context variable: rollouts of several callers run side by side, and each reaches its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Literal

from pydantic import SecretStr

from nat_finetune.config.component import LLMBaseConfig
from nat_finetune.data.seeds import derive_seed
from nat_finetune.errors import BackendError, ConfigError, Problem
from nat_finetune.interfaces import ChatModel, ChatReply
from nat_finetune.llms.local import LocalLLMConfig
from nat_finetune.llms.openai import OpenAIChatModel, OpenAILLMConfig, open_endpoint
from nat_finetune.types import Message

if TYPE_CHECKING:
    from nat_finetune.llms.endpoint import Endpoint

_called: ContextVar[ChatModel | None] = ContextVar("nat_finetune_callers_model", default=None)
_MOST_IDLE = 32
"""Endpoints whose connections are kept while nobody uses them."""


class CallerLLMConfig(LLMBaseConfig, name="caller"):
    """Stands where the target model's entry stood; never written in a config."""

    returns_token_ids = True


@dataclass(frozen=True, slots=True)
class CallersEndpoint:
    """Where the policy is served for one rollout."""

    base_url: str
    """Up to and with `/v1`."""
    model: str
    api_key: SecretStr | None = None
    logprobs: Literal["raw", "processed"] = "raw"
    """`processed`: of the distribution that was sampled, temperature included. `raw`: of the model's own, the same only at
    temperature 1; at another one such logprobs are left unknown."""


class CallersModel:
    """Implements `interfaces.ChatModel` over whichever endpoint the running rollout's caller named."""

    def __init__(self, name: str, config: LLMBaseConfig, seed: int) -> None:
        self.name = name
        self._settings, self._stop = _settings(name, config)
        self._clients = _Clients(self._settings, Random(derive_seed(seed, "retry", name)))

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        stop: Sequence[str] | None = None,
        seed: int | None = None,
    ) -> ChatReply:
        """As `ChatModel.chat`, asked of the caller's endpoint under the sampling settings of the config."""
        model = _called.get()
        if model is None:
            raise BackendError(f"llms.{self.name} is served by whoever asks for a rollout, and no rollout is running here")
        stops = self._stop if stop is None else tuple(stop)
        return await model.chat(
            messages,
            tools=tools,
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            stop=stops or None,
            seed=seed,
        )

    @asynccontextmanager
    async def served_by(self, where: CallersEndpoint) -> AsyncIterator[None]:
        """Inside, and in tasks that begin inside, calls go there."""
        async with self._clients.use(where) as endpoint:
            settings = self._settings.model_copy(update={"model_name": where.model, "return_token_ids": True})
            model = OpenAIChatModel(self.name, settings, endpoint, logprobs_as_sampled=where.logprobs == "processed")
            with _calling(model):
                yield

    async def close(self) -> None:
        """Drop all connections."""
        await self._clients.close()


@contextmanager
def _calling(model: ChatModel) -> Iterator[None]:
    token = _called.set(model)
    try:
        yield
    finally:
        _called.reset(token)


def _settings(name: str, config: LLMBaseConfig) -> tuple[OpenAILLMConfig, tuple[str, ...]]:
    """How the config samples, for an endpoint; and the texts at which it stops."""
    if isinstance(config, OpenAILLMConfig):
        return config, ()
    if isinstance(config, LocalLLMConfig):
        further = {"top_k": config.top_k} if config.top_k else {}
        settings = OpenAILLMConfig(
            model_name="caller",
            temperature=config.temperature,
            top_p=config.top_p,
            max_tokens=config.max_tokens,
            extra_body=further,
        )
        return settings, config.stop
    message = f"`_type: {config.component_name}` can't be served by somebody else"
    raise ConfigError(Problem(message, key=f"llms.{name}", hint="the target model must be `_type: local` or `_type: openai`"))


@dataclass(slots=True)
class _Client:
    endpoint: Endpoint
    users: int = 0


@dataclass(slots=True)
class _Clients:
    """Open connections, one client for each endpoint and key: one anew for each rollout would cost more than the calls."""

    settings: OpenAILLMConfig
    jitter: Random
    open: dict[tuple[str, str | None], _Client] = field(default_factory=dict)

    @asynccontextmanager
    async def use(self, where: CallersEndpoint) -> AsyncIterator[Endpoint]:
        key = None if where.api_key is None else where.api_key.get_secret_value()
        client = self.open.get((where.base_url, key))
        if client is None:
            made = open_endpoint(self.settings, where.base_url, key=key, jitter=self.jitter)
            client = self.open[where.base_url, key] = _Client(made)
        client.users += 1
        try:
            yield client.endpoint
        finally:
            client.users -= 1
            await self._trim()

    async def _trim(self) -> None:
        idle = [name for name, client in self.open.items() if not client.users]
        surplus = [self.open.pop(name) for name in idle[: max(0, len(idle) - _MOST_IDLE)]]
        await asyncio.gather(*(client.endpoint.close() for client in surplus))

    async def close(self) -> None:
        surplus, self.open = list(self.open.values()), {}
        await asyncio.gather(*(client.endpoint.close() for client in surplus))
