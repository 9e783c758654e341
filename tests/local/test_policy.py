"""One set of weights: what training changes is what the next call samples from."""

from __future__ import annotations

import math

import pytest
import torch
from peft import LoraConfig, get_peft_model

from nat_finetune.local.model import LoadedModel, weights_digest
from nat_finetune.local.policy import LocalPolicy
from nat_finetune.types import FinishReason, PolicyRef, SamplingParams
from tests.fixtures.models import tiny_model
from tests.local.harness import true_logprobs, worst

ASK = [{"role": "user", "content": "move 3"}]


@pytest.fixture
def policy():
    model, tokenizer = tiny_model("qwen3")
    digest = weights_digest(model.state_dict().items())
    policy = LocalPolicy("policy", LoadedModel(model, tokenizer, torch.device("cpu"), torch.float32, "here", digest))
    yield policy
    policy.close()


def sampling(**settings) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 6, "seed": 1, **settings})


async def test_a_reply_carries_what_training_needs(policy):
    reply = await policy.chat(ASK, sampling())
    assert reply.prompt_ids == policy.format.render(ASK)
    assert worst(reply.logprobs, true_logprobs(policy.model, reply.prompt_ids, reply.completion_ids)) <= 1e-5
    assert reply.policy == policy.ref() == PolicyRef("policy", 0, digest=policy.digest)
    assert reply.sampling == sampling()


async def test_a_sampled_end_of_turn_is_among_the_ids_and_not_in_the_text(policy):
    with torch.no_grad():
        policy.model.lm_head.weight[policy.tokenizer.eos_token_id] *= 30
    replies = [await policy.chat(ASK, sampling(seed=seed)) for seed in range(20)]
    ended = [reply for reply in replies if reply.finish_reason is FinishReason.STOP]
    assert ended
    assert all(reply.completion_ids[-1] == policy.tokenizer.eos_token_id for reply in ended)
    assert not any("im_end" in reply.text for reply in ended)


async def test_lora_is_sampled_from_as_soon_as_it_is_attached(policy):
    before = await policy.chat(ASK, sampling())
    with policy.exclusive():
        wrapped = get_peft_model(policy.model, LoraConfig(target_modules="all-linear", r=4, task_type="CAUSAL_LM"))
        policy.attach(wrapped)
    assert (await policy.chat(ASK, sampling())).logprobs == pytest.approx(before.logprobs, abs=1e-6)
    with policy.exclusive(), torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1, generator=torch.Generator().manual_seed(0))
        wrapped.train()
    ref = policy.updated("new")
    assert ref == policy.ref() == PolicyRef("policy", 1, digest="new")
    after = await policy.chat(ASK, sampling())
    assert after.policy == ref
    assert not wrapped.training, "dropout is off while sampling"
    expected = true_logprobs(wrapped, after.prompt_ids, after.completion_ids)
    assert worst(after.logprobs, expected) <= 1e-5
    scored = await policy.engine.score([(before.prompt_ids, before.completion_ids)])
    assert worst(scored[0], before.logprobs) > 1e-3, "the adapter changed the policy"


async def test_a_restored_version_is_stamped(policy):
    policy.restored(7, "d")
    assert (await policy.chat(ASK, sampling())).policy == PolicyRef("policy", 7, digest="d")


async def test_score_is_the_probability_that_sampling_gives_the_text(policy):
    """Sampled frequencies of short answers against their scores."""
    with torch.no_grad():
        policy.model.lm_head.weight *= 3  # peaked, so that frequencies say something
    settings = sampling(max_tokens=2, temperature=0.9)
    texts: dict[str, int] = {}
    count = 600
    for seed in range(count):
        reply = await policy.chat(ASK, sampling(max_tokens=2, temperature=0.9, seed=seed))
        if policy.format.encode(reply.text) == tuple(t for t in reply.completion_ids if t not in policy.format.stop_ids):
            texts[reply.text] = texts.get(reply.text, 0) + 1
    likely = sorted(texts, key=texts.__getitem__)[-5:]
    [values] = await policy.score([ASK], [likely], temperature=0.9, max_tokens=settings.max_tokens)
    for text, value in zip(likely, values, strict=True):
        p = math.exp(value)
        assert abs(texts[text] / count - p) < 4 * math.sqrt(p * (1 - p) / count) + 1e-3


async def test_score_counts_the_end_of_turn_only_where_there_is_room(policy):
    ids = policy.format.encode("move")
    prompt = policy.format.render(ASK)
    [with_room] = await policy.score([ASK], [["move"]], temperature=1.0, max_tokens=len(ids) + 1)
    [without] = await policy.score([ASK], [["move"]], temperature=1.0, max_tokens=len(ids))
    [too_long] = await policy.score([ASK], [["move move move", "move"]], temperature=1.0, max_tokens=len(ids))
    assert with_room[0] == pytest.approx(sum(true_logprobs(policy.model, prompt, (*ids, *policy.format.stop_ids))), abs=1e-5)
    assert without[0] == pytest.approx(sum(true_logprobs(policy.model, prompt, ids)), abs=1e-5)
    assert too_long == [-math.inf, pytest.approx(without[0], abs=1e-6)]
