"""`_type: openai`: any endpoint that speaks OpenAI's chat-completions protocol (OpenAI, vLLM, NIM, llama.cpp, ...)."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, AliasChoices, Field, SecretStr, field_validator, model_validator

from nat_finetune.config.component import LLMBaseConfig
from nat_finetune.data.seeds import derive_seed
from nat_finetune.errors import ConfigError
from nat_finetune.interfaces import Builder, ChatReply
from nat_finetune.llms.completions import read_reply, request_body, served_model
from nat_finetune.registry import register_llm_provider
from nat_finetune.remote.addresses import require_address
from nat_finetune.remote.secrets import checked_key, require_kept
from nat_finetune.types import Message, PolicyRef, SamplingParams

if TYPE_CHECKING:
    from nat_finetune.llms.endpoint import Endpoint

OPENAI_URL = "https://api.openai.com/v1"
DEFAULT_TIMEOUT = 600.0
"""Seconds for a whole request, where the config names none."""
_OF_A_CALL = frozenset({"model", "messages", "tools", "stop", "stream", "n"})
_RESHAPING: Mapping[str, tuple[Any, ...]] = {
    "top_k": (-1, 0),
    "min_p": (0,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
}
"""Keys of `extra_body` that change the distribution, and the values at which they don't."""
_WHOLE_DISTRIBUTION = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
"""What vLLM is told where token ids are asked for: else the model's generation_config.json decides."""


class OpenAILLMConfig(LLMBaseConfig, name="openai"):
    """Any endpoint that speaks OpenAI's chat-completions protocol."""

    model_name: Annotated[str, Field(min_length=1, validation_alias=AliasChoices("model_name", "model"))]
    """Name under which the endpoint serves the model; `model` is the same key."""
    api_key: SecretStr | None = None
    """null: the environment's OPENAI_API_KEY, if it is set."""
    base_url: Annotated[str, Field(pattern=r"^https?://[^/\s]"), AfterValidator(require_address)] | None = None
    """Up to and with `/v1`; null: the environment's OPENAI_BASE_URL, else OpenAI's own."""
    temperature: Annotated[float, Field(ge=0)] | None = None
    """null: the endpoint's default, by the protocol 1."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] = 1024
    """Most tokens of a completion. For endpoints that know only `max_completion_tokens`, set that in `extra_body`."""
    seed: Annotated[int, Field(ge=0)] | None = None
    """Each call of a rollout gets a seed of its own, derived from this one and the rollout's."""
    logprobs: bool = False
    """Ask for the logprobs of sampled tokens and record them."""
    return_token_ids: bool = False
    """Ask for the ids of prompt and sampled tokens, and their logprobs: a key of vLLM's."""
    extra_body: Annotated[dict[str, Any], Field(default_factory=dict)]
    """Further keys of the request, as they are."""
    api_type: str = "chat_completion"
    request_timeout: Annotated[float, Field(gt=0)] | None = None
    """Seconds for one attempt, body included; null: 600."""
    verify_ssl: bool = True
    max_retries: Annotated[int, Field(ge=0)] = 10
    """Further attempts after no connection, a dropped one or the timeout."""
    do_auto_retry: bool = True
    """Whether error answers are tried again, as the next three keys say."""
    num_retries: Annotated[int, Field(ge=0)] = 5
    """Further attempts after an error answer."""
    retry_on_status_codes: tuple[Annotated[int, Field(ge=400, le=599)], ...] = (429, 500, 502, 503, 504)
    retry_on_errors: tuple[Annotated[str, Field(min_length=1)], ...] = ("Too Many Requests", "429")
    """Words in an error answer."""

    @field_validator("api_type")
    @classmethod
    def _chat_only(cls, value: str) -> str:
        if value == "responses":
            raise ValueError(
                "the responses API keeps the conversation on the server, so that what the model was asked can't be recorded as "
                "messages: use chat_completion"
            )
        if value != "chat_completion":
            raise ValueError(f"expected chat_completion, found {value!r}")
        return value

    @field_validator("api_key")
    @classmethod
    def _key_fits_a_header(cls, value: SecretStr | None) -> SecretStr | None:
        return None if value is None else SecretStr(checked_key(value.get_secret_value(), "the key"))

    @model_validator(mode="after")
    def _one_place_for_each_setting(self) -> Self:
        own = _OF_A_CALL | {"temperature", "top_p", "max_tokens", "seed", "logprobs", "return_token_ids"}
        for key in self.extra_body:
            if key in own:
                what = "is set by each call" if key in _OF_A_CALL else "is a key of its own"
                raise ValueError(f"extra_body.{key}: {key} {what}, take it out of extra_body")
        limit = self.extra_body.get("max_completion_tokens", 1)
        if type(limit) is not int or limit < 1:
            raise ValueError(f"extra_body.max_completion_tokens: expected a whole number of at least 1, found {limit!r}")
        if "max_completion_tokens" in self.extra_body and "max_tokens" in self.model_fields_set:
            raise ValueError("set either max_tokens or extra_body.max_completion_tokens")
        if self.logprobs and self.temperature not in (None, 1.0):
            raise ValueError(
                f"logprobs at temperature {self.temperature:g} would not be recorded: what endpoints return is the logprob at "
                "temperature 1; leave logprobs out or set temperature: 1"
            )
        return self

    def records_token_ids(self) -> bool:
        """Whether the endpoint is asked for token ids."""
        return self.return_token_ids

    def records_logprobs(self) -> bool:
        """Whether logprobs are asked for; ids come with them where the server names tokens by id."""
        return self.logprobs or self.return_token_ids

    def samples_by_seed(self) -> bool:
        """With a seed, or on a server that returns token ids."""
        return self.return_token_ids or self.seed is not None

    def truncating_sampling(self) -> tuple[str, ...]:
        """Settings under which the returned logprobs are not those of the sampled distribution."""
        extra = (name for name, neutral in _RESHAPING.items() if self.extra_body.get(name) not in (None, *neutral))
        own = {"temperature": self.temperature not in (None, 1.0), "top_p": self.top_p not in (None, 1.0)}
        return (*(name for name, on in own.items() if on), *(f"extra_body.{name}" for name in extra))

    def sampling(self) -> SamplingParams:
        """The sampling parameters of a call that names none; what the endpoint decides stands at the protocol's default."""
        extra = self.extra_body
        return SamplingParams(
            max_tokens=extra.get("max_completion_tokens", self.max_tokens),
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=self.top_p,
            top_k=extra.get("top_k"),
            frequency_penalty=extra.get("frequency_penalty"),
            presence_penalty=extra.get("presence_penalty"),
            repetition_penalty=extra.get("repetition_penalty"),
            seed=self.seed,
        )

    def asked(self) -> dict[str, Any]:
        """The keys of a request that no call changes."""
        asked: dict[str, Any] = {"logprobs": True} if self.logprobs or self.return_token_ids else {}
        if self.return_token_ids:
            asked |= {"return_token_ids": True, "temperature": 1.0, **_WHOLE_DISTRIBUTION}
        return asked | self.extra_body


class OpenAIChatModel:
    """An entry of `llms` behind an endpoint."""

    def __init__(self, name: str, config: OpenAILLMConfig, endpoint: Endpoint, *, logprobs_as_sampled: bool = False) -> None:
        self.name = name
        self._logprobs_as_sampled = logprobs_as_sampled
        self._config = config
        self._endpoint = endpoint
        self._model = config.model_name
        self._policy: PolicyRef | None = None
        self._sampling = config.sampling()
        self._limit_key = "max_completion_tokens" if "max_completion_tokens" in config.extra_body else "max_tokens"
        self._set = frozenset(name for name in ("temperature", "top_p", "seed") if name in config.model_fields_set)

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
        """As `ChatModel.chat`."""
        given = {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "stop": tuple(stop) if stop is not None else None,
            "seed": self._seed(seed),
        }
        policy = self._policy
        text, sampling = await self._post(messages, tools, given)
        return replace(self._read(text, sampling), policy=policy)

    def served_at(self, *, base_url: str | None, model: str, api_key: str | None, policy: PolicyRef) -> None:
        """As `remote.interfaces.ServedChatModel.served_at`."""
        self._model, self._policy = model, policy
        here = self._endpoint.target
        url = here if base_url is None else chat_url(base_url)
        self._endpoint.move(url, api_key or (self._endpoint.key if same_origin(url, here) else None))

    async def probe(self, prompt: str, *, max_tokens: int) -> tuple[ChatReply, str | None]:
        """One small request: the reply, and the name of the model that the endpoint says has answered.

        Raises:
            BackendError: as `chat`.
        """
        text, sampling = await self._post([{"role": "user", "content": prompt}], None, {"max_tokens": max_tokens})
        reply = self._read(text, sampling)
        return reply, served_model(text, where=self._where, secret=self._endpoint.key)

    async def _post(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None, given: Mapping[str, Any]
    ) -> tuple[str, SamplingParams]:
        settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        sampling = replace(self._sampling, **settings)
        body = self._config.asked() | request_body(
            self._model, messages, sampling, sent=self._set | settings.keys(), limit_key=self._limit_key
        )
        if tools:
            body["tools"] = [dict(tool) for tool in tools]
        return await self._endpoint.post(body), sampling

    def _read(self, text: str, sampling: SamplingParams) -> ChatReply:
        needs_ids = self._config.return_token_ids
        return read_reply(
            text,
            sampling,
            where=self._where,
            needs_ids=needs_ids,
            as_sampled=self._logprobs_as_sampled,
            secret=self._endpoint.key,
        )

    @property
    def _where(self) -> str:
        return f"llms.{self.name}: {self._endpoint.url}"

    def _seed(self, given: int | None) -> int | None:
        """The call's seed in 31 bits: what every server takes."""
        if given is None:
            return None
        return (derive_seed(self._config.seed, "call", given) if self._config.seed is not None else given) % 2**31


@register_llm_provider(config_type=OpenAILLMConfig)
async def openai_llm(config: OpenAILLMConfig, builder: Builder) -> AsyncIterator[OpenAIChatModel]:
    """Open a client for the endpoint; close it at the end of the run."""
    base = config.base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL
    key = (config.api_key.get_secret_value() if config.api_key else "") or os.environ.get("OPENAI_API_KEY", "")
    require_kept(key, f"llms.{builder.entry_name}.api_key")
    if not key and base == OPENAI_URL:
        raise ConfigError(f"llms.{builder.entry_name} has no api_key, and OPENAI_API_KEY is not set: {OPENAI_URL} needs one")
    endpoint = open_endpoint(
        config,
        base,
        key=checked_key(key, "OPENAI_API_KEY") or None,
        jitter=Random(derive_seed(builder.seed, "retry", builder.entry_name)),
    )
    try:
        yield OpenAIChatModel(builder.entry_name, config, endpoint)
    finally:
        await endpoint.close()


def chat_url(base_url: str) -> str:
    """Where an endpoint takes chat completions."""
    return f"{base_url.rstrip('/')}/chat/completions"


def same_origin(url: str, other: str) -> bool:
    """Whether a key that was given for one may be shown to the other: same scheme, host and port."""
    return urlsplit(url)[:2] == urlsplit(other)[:2]


def open_endpoint(config: OpenAILLMConfig, base_url: str, *, key: str | None, jitter: Random) -> Endpoint:
    """A client for the chat completions below `base_url`, with the config's deadline and retries; close it when done."""
    from nat_finetune.llms.endpoint import Endpoint
    from nat_finetune.remote.sending import RetryPolicy

    return Endpoint(
        chat_url(base_url),
        key=key,
        timeout=config.request_timeout or DEFAULT_TIMEOUT,
        retry=RetryPolicy(
            connection=config.max_retries,
            answer=config.num_retries if config.do_auto_retry else 0,
            statuses=frozenset(config.retry_on_status_codes),
            texts=tuple(config.retry_on_errors),
        ),
        verify_ssl=config.verify_ssl,
        jitter=jitter,
    )
