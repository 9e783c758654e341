"""Chat models and functions that record themselves: what `compose` hands to workflows in place of the bare ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from nat_finetune.errors import BackendError, InfrastructureFailure, Stage, StageError, boundary
from nat_finetune.interfaces import ChatModel, ChatReply, ScoringChatModel
from nat_finetune.tracing.context import current_path, current_recorder, inside
from nat_finetune.tracing.recorder import plain, writable
from nat_finetune.types import FunctionCall, Message, ModelCall


class TracedChatModel:
    """A chat model whose calls become `ModelCall` events of the rollout that is running.

    Each call gets a seed of its own, derived from the rollout's, where the model can use one (`seeded`) and the workflow
    named none: so a rollout samples the same whatever runs beside it.
    """

    def __init__(self, inner: ChatModel, *, seeded: bool) -> None:
        self.inner = inner
        self._seeded = seeded

    @property
    def name(self) -> str:
        """Its name in the config."""
        return self.inner.name

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
        """As `ChatModel.chat`, recorded."""
        recorder = current_recorder()
        settings: dict[str, Any] = {
            "tools": tools, "max_tokens": max_tokens, "temperature": temperature,
            "top_p": top_p, "top_k": top_k, "stop": stop,
        }  # fmt: skip
        if recorder is None:
            return await self.inner.chat(messages, seed=seed, **settings)
        seq, start = recorder.reserve(), recorder.clock()
        if seed is None and self._seeded:
            seed = recorder.call_seed(seq)
        with boundary(Stage.MODEL):
            try:
                reply = await self.inner.chat(messages, seed=seed, **settings)
            except BackendError as error:  # one call's failure is one rollout's failure; the failure limit ends the run
                raise InfrastructureFailure(str(error), stage=Stage.MODEL, error_type=type(error).__name__) from error
        recorder.add(
            ModelCall(
                rollout_id=recorder.rollout_id,
                seq=seq,
                path=current_path(),
                start=start,
                end=recorder.clock(),
                llm=self.name,
                messages=tuple(plain(message) for message in messages),
                message=reply.message,
                finish_reason=reply.finish_reason,
                sampling=reply.sampling,
                policy=reply.policy,
                prompt_ids=reply.prompt_ids,
                completion_ids=reply.completion_ids,
                logprobs=reply.logprobs,
                tools=tuple(tools) if tools is not None else None,
            )
        )
        return replace(reply, call_seq=seq)

    async def score(self, prompts: Sequence[Sequence[Message]], completions: Sequence[Sequence[str]]) -> list[list[float]]:
        """As `ScoringChatModel.score`; not recorded, since nothing is sampled.

        Raises:
            BackendError: this model can't score.
        """
        if not isinstance(self.inner, ScoringChatModel):
            raise BackendError(
                f"llms.{self.name} can't score given completions; exact evaluation needs a local model: "
                "set the evaluator's `exact: false`, or evaluate with `_type: local`"
            )
        return await self.inner.score(prompts, completions)


class TracedFunction:
    """A registered function whose calls become `FunctionCall` events and put its name on the function path."""

    def __init__(self, name: str, inner: Callable[..., Awaitable[Any]]) -> None:
        self.name = name
        self.inner = inner

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function; what it raises goes on, recorded."""
        recorder = current_recorder()
        with inside(self.name) as path:
            if recorder is None:
                return await self.inner(*args, **kwargs)
            seq, start = recorder.reserve(), recorder.clock()
            output, error = None, None
            try:
                output = await self.inner(*args, **kwargs)
            except BaseException as raised:
                error = str(raised) if isinstance(raised, StageError) else f"{type(raised).__name__}: {raised}"
                raise
            finally:
                recorder.add(
                    FunctionCall(
                        rollout_id=recorder.rollout_id,
                        seq=seq,
                        path=path,
                        start=start,
                        end=recorder.clock(),
                        name=self.name,
                        input=plain(_arguments(args, kwargs)),
                        output=plain(output),
                        error=None if error is None else writable(error),
                    )
                )
        return output


def _arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    if kwargs:
        return {"args": args, "kwargs": kwargs}
    return args[0] if len(args) == 1 else args
