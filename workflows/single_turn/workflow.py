"""The workflow `single_turn`: one question to a model, whose answer is the output: train on a dataset with no code at all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from pydantic import field_validator

from nat_finetune.config.component import FunctionBaseConfig, LLMRef
from nat_finetune.config.template import check_template, fill
from nat_finetune.errors import DataError
from nat_finetune.interfaces import Builder
from nat_finetune.registry import register_function
from nat_finetune.types import Example

PLACES = ("input", "metadata")


class SingleTurnConfig(FunctionBaseConfig, name="single_turn"):
    """One question to a model; its answer, without surrounding white space, is the output."""

    llm: LLMRef
    prompt: str = "{input}"
    """The question: `{input}` is the example's, `{input.key}` a part of it, `{metadata.column}` another column of its row."""
    system: str | None = None
    """The system message, with the same places; null: none."""

    @field_validator("prompt", "system")
    @classmethod
    def _places(cls, text: str | None) -> str | None:
        return None if text is None else check_template(text, PLACES)


@register_function(config_type=SingleTurnConfig)
async def single_turn(config: SingleTurnConfig, builder: Builder) -> AsyncIterator[Callable[[Example], Awaitable[str]]]:
    """Make the workflow."""
    llm = await builder.get_llm(config.llm)
    parts = [("system", config.system), ("user", config.prompt)]

    async def answer(example: Example) -> str:
        values = {"input": example.input, "metadata": example.metadata}
        try:
            messages = [{"role": role, "content": fill(text, values)} for role, text in parts if text is not None]
        except KeyError as error:
            raise DataError(f"example {example.id!r}: the prompt can't be filled: {error.args[0]}") from None
        return (await llm.chat(messages)).text.strip()

    yield answer
