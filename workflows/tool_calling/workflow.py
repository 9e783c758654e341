"""The workflow `tool_calling`: a request comes in, a function answers it with one tool call, the household carries it out.

The household is simulated: a call that it can carry out is done, any other is an error that the tool returns. An answer that
calls nothing is no failure of the rollout: evaluators grade it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from nat_finetune_workflows.tool_calling.answers import read_call
from nat_finetune_workflows.tool_calling.prompts import Style, messages
from nat_finetune_workflows.tool_calling.tools import problem_with

from nat_finetune import tracing
from nat_finetune.config.component import FunctionBaseConfig, FunctionRef, LLMRef
from nat_finetune.errors import BackendError
from nat_finetune.interfaces import Builder, ChatModel, ScoringChatModel
from nat_finetune.registry import register_function
from nat_finetune.types import Example


class ToolCallConfig(FunctionBaseConfig, name="tool_call"):
    """One model call that answers a request with a tool call."""

    llm: LLMRef
    style: Style = "chat"
    """`tiny`: the bare request, for `builtin:tool-calling`. `chat`: with the tools and the format, for a chat model."""


class ToolCallingConfig(FunctionBaseConfig, name="tool_calling"):
    """Answers a request with one tool call, and carries it out in a simulated household."""

    caller: FunctionRef
    """The function that answers."""


class CallFunction:
    """Asks a model for a tool call; and says how likely it makes given answers."""

    def __init__(self, llm: ChatModel, style: Style) -> None:
        self._llm = llm
        self._style: Style = style

    async def __call__(self, request: str) -> str:
        """The model's answer, whatever it is."""
        return (await self._llm.chat(messages(request, self._style))).text

    async def logprobs(self, requests: Sequence[str], answers: Sequence[str]) -> list[float]:
        """Nats of each request's one given answer.

        Raises:
            BackendError: the model can't score given answers.
        """
        if not isinstance(self._llm, ScoringChatModel):
            raise BackendError(f"llms.{self._llm.name} can't score answers; set `exact: false` on the evaluator")
        scored = await self._llm.score([messages(r, self._style) for r in requests], [[answer] for answer in answers])
        return [nats for (nats,) in scored]


@register_function(config_type=ToolCallConfig)
async def tool_call(config: ToolCallConfig, builder: Builder) -> AsyncIterator[CallFunction]:
    """Make the function."""
    yield CallFunction(await builder.get_llm(config.llm), config.style)


@register_function(config_type=ToolCallingConfig)
async def tool_calling(config: ToolCallingConfig, builder: Builder) -> AsyncIterator[Callable[[Example], Awaitable[Any]]]:
    """Make the workflow."""
    caller = await builder.get_function(config.caller)

    async def run(example: Example) -> dict[str, Any]:
        text: str = await caller(str(example.input))
        call = read_call(text)
        if call is None:
            return {"text": text, "done": None}
        with tracing.tool(call.name, call.arguments) as used:
            used.result = problem_with(call) or "done"
        return {"text": text, "done": used.result}

    yield run
