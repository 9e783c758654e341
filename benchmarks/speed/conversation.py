"""A workflow of several turns, and the reward: what a user of nat-finetune writes for this work."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from workload import reward_of

from nat_finetune.config.component import FunctionBaseConfig, LLMRef
from nat_finetune.interfaces import Builder
from nat_finetune.registry import register_function
from nat_finetune.types import Example, Rollout


class ConversationConfig(FunctionBaseConfig, name="conversation"):
    """The model speaks, hears an observation, and speaks again."""

    llm: LLMRef


@register_function(config_type=ConversationConfig)
async def conversation(config: ConversationConfig, builder: Builder) -> AsyncIterator[Callable[[Example], Awaitable[str]]]:
    """Make the workflow."""
    llm = await builder.get_llm(config.llm)

    async def talk(example: Example) -> str:
        asked = example.input
        limits = asked["tokens"] or [None] * (len(asked["observations"]) + 1)
        messages = [{"role": "user", "content": asked["first"]}]
        said = []
        for limit, observation in zip(limits, [*asked["observations"], None], strict=True):
            reply = await llm.chat(messages, max_tokens=limit)
            said.append(reply.text)
            if observation is not None:
                messages = [*messages, reply.message, {"role": "user", "content": observation}]
        return "".join(said)

    yield talk


def score(example: Example, rollout: Rollout) -> float:
    """The reward of what was said."""
    return reward_of(str(rollout.output))
