"""The engine on SmolLM2-135M-Instruct: it answers, and its logprobs are the model's."""

from __future__ import annotations

import asyncio
import os

import pytest

from nat_finetune.local.model import load_model
from nat_finetune.local.policy import LocalPolicy
from nat_finetune.types import FinishReason, SamplingParams
from tests.local.harness import true_logprobs, worst

BOUND = 2e-4  # nats, float32

pytestmark = pytest.mark.pretrained


async def test_smollm2_answers_and_agrees_with_a_full_forward():
    policy = LocalPolicy("policy", load_model(os.environ["SMOLLM2"]))
    questions = [f"What is the capital of {country}?" for country in ("France", "Italy", "Germany", "Germany")]
    try:
        replies = await asyncio.gather(
            *(
                policy.chat([{"role": "user", "content": question}], SamplingParams(max_tokens=24, temperature=t, seed=index))
                for t in (0.0, 0.8)
                for index, question in enumerate(questions)
            )
        )
    finally:
        policy.close()
    assert "Paris" in replies[0].text
    assert replies[0].finish_reason is FinishReason.STOP
    for reply in replies:
        expected = true_logprobs(policy.model, reply.prompt_ids, reply.completion_ids, reply.sampling.temperature or 1.0)
        assert worst(reply.logprobs, expected) <= BOUND


async def test_conversations_agree_whatever_was_cached():
    """Groups that share a prompt, four turns each, all at once: nothing read twice, and the model's logprobs all the same."""
    policy = LocalPolicy("policy", load_model(os.environ["SMOLLM2"]))
    story = "A farmer, a fox, a goose and a bag of beans stand at a river. " * 12

    async def talk(seed: int):
        messages = [{"role": "user", "content": f"{story} Tell part {seed % 2} of what happens."}]
        replies = []
        for turn in range(4):
            sampling = SamplingParams(max_tokens=12, temperature=1.0, seed=10 * seed + turn)
            replies.append(await policy.chat(messages, sampling))
            messages = [*messages, replies[-1].message, {"role": "user", "content": "And then?"}]
        return replies

    try:
        conversations = await asyncio.gather(*(talk(seed) for seed in range(6)))
    finally:
        policy.close()
    for reply in (reply for replies in conversations for reply in replies):
        expected = true_logprobs(policy.model, reply.prompt_ids, reply.completion_ids)
        assert worst(reply.logprobs, expected) <= BOUND
