"""What the engine samples is what the model says, however requests arrive, share batches, end or fail."""

from __future__ import annotations

import asyncio
import random

import pytest
import torch

from nat_finetune.errors import BackendError, PolicyFailure
from nat_finetune.types import FinishReason
from tests.fixtures.models import ARCHITECTURES
from tests.local.harness import ask, engine_of, prompts_of, reference_model, true_logprobs, worst

STOPS = (2, *range(10, 40))  # many, so that rows end at different steps


@pytest.mark.parametrize("arch", ARCHITECTURES)
async def test_logprobs_agree_with_a_full_forward(arch):
    """Mixed lengths, staggered arrivals, more requests than slots, rows that end early, equal prompts, temperatures."""
    prompts = prompts_of(20, 1, 60) + prompts_of(3, 20, 40, seed=1) * 3
    temperatures = [(1.0, 0.7, 1.5)[index % 3] for index in range(len(prompts))]
    with engine_of(arch, max_batch=8) as engine:
        generations = await asyncio.gather(
            *(
                ask(
                    engine, prompt, seed=index, max_tokens=1 + index % 40, temperature=temperature,
                    stop_ids=STOPS, delay=0.004 * (index % 5),
                )
                for index, (prompt, temperature) in enumerate(zip(prompts, temperatures, strict=True))
            )
        )  # fmt: skip
    model = reference_model(arch)
    for prompt, temperature, generation in zip(prompts, temperatures, generations, strict=True):
        expected = true_logprobs(model, prompt, generation.completion_ids, temperature)
        assert worst(generation.logprobs, expected) <= 1e-5
    assert {generation.finish_reason for generation in generations} == {FinishReason.STOP, FinishReason.LENGTH}


@pytest.mark.parametrize("arch", ARCHITECTURES)
async def test_greedy_equals_transformers_generate(arch):
    prompts = prompts_of(5, 3, 50, seed=3)
    with engine_of(arch) as engine:
        found = await asyncio.gather(*(ask(engine, p, temperature=0.0, max_tokens=30, stop_ids=(2,)) for p in prompts))
    model = reference_model(arch)
    for prompt, generation in zip(prompts, found, strict=True):
        expected = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=30)[0, len(prompt) :]
        assert list(generation.completion_ids) == expected.tolist()


async def test_a_seed_samples_the_same_whatever_shares_the_batch():
    prompts = prompts_of(12, 5, 40, seed=4)
    with engine_of() as engine:
        together = await asyncio.gather(*(ask(engine, p, seed=i, max_tokens=20) for i, p in enumerate(prompts)))
        alone = [await ask(engine, p, seed=i, max_tokens=20) for i, p in enumerate(prompts)]
        other = await ask(engine, prompts[0], seed=99, max_tokens=20)
    for one, many in zip(alone, together, strict=True):
        assert one.completion_ids == many.completion_ids
        assert worst(one.logprobs, many.logprobs) <= 1e-5
    assert other.completion_ids != alone[0].completion_ids


async def conversation(engine, key: str, first: tuple[int, ...], nap: random.Random | None):
    """A rollout of three turns, the second with two calls at once; naps differ from run to run."""
    engine.rollout_started(key)
    try:
        prompt, calls = first, []
        for turn in range(3):
            if nap is not None:
                await asyncio.sleep(nap.random() * 0.01)
            both = [ask(engine, prompt, key=key, seed=hash_of(key, turn, side), stop_ids=STOPS) for side in range(1 + turn % 2)]
            replies = await asyncio.gather(*both)
            calls += replies
            prompt = (*prompt, *replies[0].completion_ids)
        return [(call.completion_ids, call.logprobs) for call in calls]
    finally:
        engine.rollout_ended(key)


def hash_of(key: str, turn: int, side: int) -> int:
    return int(key) * 100 + turn * 10 + side


@pytest.mark.parametrize("shared", [False, True])
async def test_lockstep_is_bit_identical_under_random_delays(shared):
    """Also where prompts begin alike, so that rows share a trunk and turns continue one another."""
    beginning = prompts_of(1, 150, 150, seed=6)[0] if shared else ()

    async def run(seed: int | None):
        nap = random.Random(seed) if seed is not None else None
        with engine_of(max_batch=4, deterministic=True) as engine:
            await ask(engine, (5, 6, 7))  # what went before must not matter either
            jobs = [conversation(engine, str(i), (*beginning, *p), nap) for i, p in enumerate(prompts_of(7, 3, 45, seed=5))]
            return await asyncio.gather(*jobs)

    first = await run(None)
    assert await run(1) == first
    assert await run(2) == first


async def test_lockstep_gives_each_batch_a_cache_of_its_own():
    """The cache's shape must not tell of earlier batches: strides may change how sums are rounded."""

    async def last_shape(*lengths: int):
        with engine_of(deterministic=True) as engine:
            for length in lengths:
                await ask(engine, range(4, 4 + length))
            return engine._batch._cache.slots, engine._batch._cache.positions

    assert await last_shape(200, 5) == await last_shape(5)


async def test_lockstep_without_registered_rollouts_takes_what_has_arrived():
    with engine_of(deterministic=True) as engine:
        assert len(await asyncio.gather(*(ask(engine, p) for p in prompts_of(3, 2, 9)))) == 3


async def test_stop_ids_and_limits_say_why_it_ended():
    with engine_of() as engine:
        free = await ask(engine, (5, 6, 7), max_tokens=12, seed=3)
        token = free.completion_ids[4]
        first = free.completion_ids.index(token)
        stopped = await ask(engine, (5, 6, 7), max_tokens=12, seed=3, stop_ids=(token,))
        at_limit = await ask(engine, (5, 6, 7), max_tokens=first + 1, seed=3, stop_ids=(token,))
    assert (len(free.completion_ids), free.finish_reason) == (12, FinishReason.LENGTH)
    assert stopped.completion_ids == free.completion_ids[: first + 1]
    assert stopped.finish_reason is FinishReason.STOP
    assert at_limit == stopped, "a turn that ends with its last token has ended"


async def test_stop_string_ends_at_the_token_that_completes_it():
    with engine_of() as engine:
        free = await ask(engine, (5, 6, 7), max_tokens=40, seed=3)
        decode = engine._tokenizer.decode
        text = decode(free.completion_ids[10:13])
        end = next(n for n in range(1, 41) if text in decode(free.completion_ids[:n]))
        stopped = await ask(engine, (5, 6, 7), max_tokens=40, seed=3, stop=("never said", text))
    assert stopped.completion_ids == free.completion_ids[:end]
    assert stopped.finish_reason is FinishReason.STOP


async def test_top_k_one_is_greedy_with_honest_logprobs():
    with engine_of() as engine:
        greedy, top = await asyncio.gather(
            ask(engine, (5, 6, 7), temperature=0.0), ask(engine, (5, 6, 7), temperature=1.0, top_k=1, seed=8)
        )
    assert top.completion_ids == greedy.completion_ids
    assert worst(top.logprobs, greedy.logprobs) <= 1e-5


async def test_the_context_bounds_a_completion_and_refuses_a_prompt_without_room():
    with engine_of(max_context=16) as engine:
        cut = await ask(engine, range(4, 17), max_tokens=50)
        with pytest.raises(PolicyFailure, match="20 tokens, the context holds 16"):
            await ask(engine, range(4, 24))
    assert (len(cut.completion_ids), cut.finish_reason) == (3, FinishReason.LENGTH)


@pytest.mark.parametrize(
    ("settings", "message"), [({"repetition_penalty": 1.2}, "repetition_penalty"), ({"seed": None}, "seed")]
)
async def test_what_it_can_not_do_it_refuses(settings, message):
    with engine_of() as engine:
        with pytest.raises(BackendError, match=message):
            await ask(engine, (5, 6), **settings)
        with pytest.raises(BackendError, match="no tokens"):
            await ask(engine, ())
