"""`_type: local`: a transformers model in this process, sampled by the batching engine; local_trainer_adapter can train it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from nat_finetune.config.component import LLMBaseConfig, ModelSource, Text
from nat_finetune.data.seeds import derive_seed
from nat_finetune.interfaces import Builder, ChatReply
from nat_finetune.registry import register_llm_provider
from nat_finetune.tracing.context import current_recorder
from nat_finetune.types import Message, SamplingParams

if TYPE_CHECKING:
    from nat_finetune.local.policy import LocalPolicy


class LocalLLMConfig(LLMBaseConfig, name="local"):
    """A transformers model in this process: sampled, scored and trained with one set of weights."""

    returns_token_ids: ClassVar[bool] = True
    trainable_locally: ClassVar[bool] = True

    model: Annotated[ModelSource, Field(min_length=1)]
    """`builtin:NAME`, a folder, a `.gguf` file, or a hub id. The hub is asked for nothing but the last."""
    revision: Text | None = None
    """Branch, tag or commit of a hub id."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """auto: bfloat16 on an accelerator, float32 on the CPU."""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")] = "auto"
    """auto: cuda, else mps, else cpu."""
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """0 is greedy."""
    max_tokens: Annotated[int, Field(ge=1)] = 256
    """Most tokens of a completion, end-of-turn token included."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    """0 or null: all tokens."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Texts that end a completion."""
    max_batch: Annotated[int, Field(ge=1)] = 64
    """Most completions under way at once."""
    max_context: Annotated[int, Field(ge=2)] | None = None
    """Most tokens of prompt and completion; null: what the model was made for."""
    prefix_cache_mib: Annotated[int, Field(ge=0)] = 1024
    """MiB for keys and values of earlier prompts and replies: what begins alike is not computed again; 0: none."""

    def truncating_sampling(self) -> tuple[str, ...]:
        """top_p and top_k, where they are in force, and a temperature of 0, which samples nothing."""
        return (*self.sampling().truncating, *(("temperature",) if self.temperature == 0 else ()))

    def sampling(self) -> SamplingParams:
        """The sampling parameters of a call that names none."""
        return SamplingParams(
            max_tokens=self.max_tokens, temperature=self.temperature, top_p=self.top_p, top_k=self.top_k, stop=self.stop
        )


class LocalChatModel:
    """An entry of `llms` backed by a `LocalPolicy`."""

    def __init__(self, policy: LocalPolicy, sampling: SamplingParams, seed: int) -> None:
        self.policy = policy
        self._sampling = sampling
        self._seed = seed
        self._calls = count()

    @property
    def name(self) -> str:
        """Its name in the config."""
        return self.policy.name

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
        """As `ChatModel.chat`. Without a seed, the n-th call of a run gets the n-th derived from the run's."""
        given: dict[str, Any] = {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "stop": tuple(stop) if stop is not None else None,
            "seed": derive_seed(self._seed, "llm", self.name, next(self._calls)) if seed is None else seed,
        }
        sampling = replace(self._sampling, **{name: value for name, value in given.items() if value is not None})
        recorder = current_recorder()
        key = recorder.rollout_id if recorder is not None else ""
        return await self.policy.chat(messages, sampling, tools=tools, order_key=key)

    async def score(self, prompts: Sequence[Sequence[Message]], completions: Sequence[Sequence[str]]) -> list[list[float]]:
        """As `ScoringChatModel.score`."""
        return await self.policy.score(
            prompts, completions, temperature=self._sampling.temperature, max_tokens=self._sampling.max_tokens
        )


@register_llm_provider(config_type=LocalLLMConfig)
async def local_llm(config: LocalLLMConfig, builder: Builder) -> AsyncIterator[LocalChatModel]:
    """Load the model and start its engine; end the engine at the end of the run."""
    from nat_finetune.local.model import load_model
    from nat_finetune.local.policy import LocalPolicy

    loaded = load_model(config.model, dtype=config.dtype, device=config.device, revision=config.revision)
    policy = LocalPolicy(
        builder.entry_name,
        loaded,
        max_batch=config.max_batch,
        max_context=config.max_context,
        deterministic=builder.deterministic,
        prefix_cache_bytes=config.prefix_cache_mib << 20,
        sampling=config.sampling(),
    )
    try:
        yield LocalChatModel(policy, config.sampling(), builder.seed)
    finally:
        policy.close()
