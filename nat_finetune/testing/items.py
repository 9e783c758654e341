"""Trainable items by hand, or sampled by a policy's own engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from nat_finetune.testing.parts import REWARD
from nat_finetune.types import (
    Collection,
    Demonstration,
    FinishReason,
    Group,
    Item,
    Message,
    PreferencePair,
    Provenance,
    SamplingParams,
    Segment,
    Trajectory,
    Turn,
)

MESSAGES: tuple[Message, ...] = ({"role": "user", "content": "move 5"},)


def trajectory(
    prompt: Sequence[int],
    completion: Sequence[int],
    logprobs: Sequence[float],
    reward: float | None,
    *,
    rollout: str = "r",
    example: int = 1,
    version: int | None = 0,
    temperature: float = 1.0,
) -> Trajectory:
    """A rollout of one turn; `logprobs` in nats."""
    begin, end = len(prompt), len(prompt) + len(completion)
    segment = Segment(
        token_ids=(*prompt, *completion),
        loss_mask=(0,) * begin + (1,) * len(completion),
        logprobs=(0.0,) * begin + tuple(logprobs),
        turns=(Turn(0, begin, end, 0, FinishReason.STOP, temperature),),
    )
    return Trajectory(rollout, example, (segment,), {REWARD: reward}, version)


async def sampled_group(policy: Any, rewards: Sequence[float | None], *, example: int = 1, max_tokens: int = 6) -> Group:
    """Rollouts sampled by a `local.policy.LocalPolicy`, with these rewards."""
    replies = await asyncio.gather(
        *(
            policy.chat(MESSAGES, SamplingParams(max_tokens=max_tokens, seed=100 * example + i), order_key=str(i))
            for i in range(len(rewards))
        )
    )
    members = [
        trajectory(
            reply.prompt_ids or (),
            reply.completion_ids or (),
            reply.logprobs or (),
            reward,
            rollout=f"{example}-{index}",
            example=example,
            version=policy.version,
        )
        for index, (reply, reward) in enumerate(zip(replies, rewards, strict=True))
    ]
    return Group(example, tuple(members))


def pair(chosen: str, rejected: str, *, weight: float = 1.0, text: str = "move 5", example: int = 1) -> PreferencePair:
    """A pair without token ids."""
    return PreferencePair(({"role": "user", "content": text},), chosen, rejected, Provenance(example_id=example), weight=weight)


def demonstration(completion: str, *, text: str = "move 5", example: int = 1) -> Demonstration:
    """A completion to imitate."""
    return Demonstration(({"role": "user", "content": text},), completion, Provenance(example_id=example))


def collection(*items: Item, step: int = 0) -> Collection:
    """A step's items."""
    return Collection(items, "run", step, "policy")
