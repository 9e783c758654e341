"""One set of weights that serves rollouts and is trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from nat_finetune.interfaces import ChatReply
from nat_finetune.local.chat import ChatFormat
from nat_finetune.local.device import end_helpers
from nat_finetune.local.engine import PREFIX_CACHE_BYTES, Engine
from nat_finetune.local.forward import forward_of
from nat_finetune.local.linear import use_fast_linear
from nat_finetune.local.model import LoadedModel
from nat_finetune.local.scoring import END, ScoreRow, score
from nat_finetune.types import Message, PolicyRef, SamplingParams


class LocalPolicy:
    """Weights, their version, and the engine that samples from them.

    Training holds `exclusive()` while it changes weights in place (or `attach`es a wrapped model), and then calls `updated`.
    """

    def __init__(
        self,
        name: str,
        loaded: LoadedModel,
        *,
        max_batch: int = 64,
        max_context: int | None = None,
        deterministic: bool = False,
        prefix_cache_bytes: int = PREFIX_CACHE_BYTES,
        sampling: SamplingParams | None = None,
    ) -> None:
        self.name = name
        self.tokenizer = loaded.tokenizer
        self.device: torch.device = loaded.device
        self.dtype: torch.dtype = loaded.dtype
        self.source = loaded.source
        self.sampling = sampling
        """How calls that name nothing are sampled, where the config says so."""
        self.max_context = max_context if max_context is not None else model_context(loaded.model)
        self.version = 0
        self.digest: str | None = loaded.digest
        self.format = ChatFormat(loaded.tokenizer, loaded.model)
        self._model = loaded.model
        use_fast_linear(loaded.model)
        self._forward = forward_of(loaded.model)
        self.engine = Engine(
            self._forward,
            loaded.tokenizer,
            max_batch=max_batch,
            max_context=self.max_context,
            deterministic=deterministic,
            prefix_cache_bytes=prefix_cache_bytes,
        )
        end_helpers()

    @property
    def model(self) -> Any:
        """The transformers model, or the peft model around it."""
        return self._model

    @property
    def vocabulary(self) -> int:
        """Number of token ids that the model can read."""
        return int(_bare(self._model).get_input_embeddings().weight.shape[0])

    def attach(self, model: Any) -> None:
        """Sample from this model from now on (a peft model around the old one, or a replacement); the version stays."""
        with self.exclusive():
            self._model = model.eval()
            use_fast_linear(model)
            self._forward = forward_of(_bare(model))
            self.engine.use(self._forward, self.version)

    def ref(self) -> PolicyRef:
        """Which weights these are now."""
        return self._ref(self.version)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the weights: waits until no completion is under way, and none begins before it is left. May be nested.

        The model is in eval mode when it is left: dropout is off while sampling.
        """
        with self.engine.exclusive():
            try:
                yield
            finally:
                self._model.eval()

    def updated(self, digest: str | None) -> PolicyRef:
        """The weights have changed: the next version begins, and no cache of the old one is used again."""
        return self.restored(self.version + 1, digest)

    def restored(self, version: int, digest: str | None) -> PolicyRef:
        """The weights are those of this version (loaded from a checkpoint)."""
        with self.exclusive():
            self.version, self.digest = version, digest
            self.engine.use(self._forward, version)
        return self.ref()

    async def chat(
        self,
        messages: Sequence[Message],
        sampling: SamplingParams,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        order_key: str = "",
    ) -> ChatReply:
        """Sample one reply.

        Raises:
            BackendError: the template can't render the messages, or the engine failed.
            PolicyFailure: the prompt leaves no room for a completion.
        """
        prompt_ids = self.format.render(messages, tools)
        generation = await self.engine.generate(prompt_ids, sampling, stop_ids=self.format.stop_ids, order_key=order_key)
        message, finish_reason = self.format.parse(
            generation.completion_ids, generation.finish_reason, stop=sampling.stop, tools=tools is not None
        )
        return ChatReply(
            message=message,
            finish_reason=finish_reason,
            sampling=sampling,
            policy=self._ref(generation.policy_version),
            prompt_ids=prompt_ids,
            completion_ids=generation.completion_ids,
            logprobs=generation.logprobs,
        )

    async def score(
        self,
        prompts: Sequence[Sequence[Message]],
        completions: Sequence[Sequence[str]],
        *,
        temperature: float,
        max_tokens: int,
    ) -> list[list[float]]:
        """Log-probability (nats) that sampling gives just this completion, tokenised as the tokenizer does.

        The end of the turn counts where `max_tokens` leaves room for it; a longer completion has -inf.
        """
        rows: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        for messages, texts in zip(prompts, completions, strict=True):
            prompt_ids = self.format.render(messages, None)
            rows += [(prompt_ids, self._completion(text, max_tokens)) for text in texts]
        fitting = [row for row in rows if len(row[1]) <= max_tokens]
        scored = iter(await self.engine.score(fitting, temperature=temperature, stop_ids=self.format.stop_ids))
        values = iter([sum(next(scored)) if len(row[1]) <= max_tokens else float("-inf") for row in rows])
        return [[next(values) for _ in texts] for texts in completions]

    @torch.inference_mode()
    def score_rows(self, rows: Sequence[ScoreRow]) -> list[list[float]]:
        """Logprobs of completions' tokens (nats, temperature 1) by the weights as they are; hold `exclusive()` around it.

        As `engine.score`, for whoever has put other weights in place and may not let the engine sample from them.
        """
        return score(self._forward, rows, temperature=1.0, stop_ids=())

    def close(self) -> None:
        """End the engine's thread."""
        self.engine.close()

    def _completion(self, text: str, max_tokens: int) -> tuple[int, ...]:
        ids = self.format.encode(text)
        return (*ids, END) if len(ids) < max_tokens else ids

    def _ref(self, version: int) -> PolicyRef:
        return PolicyRef(llm=self.name, version=version, digest=self.digest if version == self.version else None)


def model_context(model: Any) -> int | None:
    """Most tokens that a model was made for; None where its config does not say."""
    limit = model.config.get_text_config().to_dict().get("max_position_embeddings")
    return int(limit) if limit else None


def _bare(model: Any) -> Any:
    """The transformers model inside a peft model: adapters live in its layers."""
    from peft import PeftModel

    return model.get_base_model() if isinstance(model, PeftModel) else model
