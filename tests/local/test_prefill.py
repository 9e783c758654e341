"""What was read before is not read again, and what is sampled is the same for it."""

from __future__ import annotations

import asyncio

import pytest

from nat_finetune.local.engine import Engine
from nat_finetune.local.forward import CausalForward, forward_of
from nat_finetune.local.prefill import TRUNK_TOKENS
from tests.fixtures.models import ARCHITECTURES, tiny_model
from tests.local.harness import ask, engine_of, prompts_of, reference_model, true_logprobs, worst


class Counting:
    """A forward that counts the tokens that it is given, padding included."""

    def __init__(self, forward):
        self.forward, self.tokens = forward, 0
        self.device, self.pass_tokens, self.shares = forward.device, forward.pass_tokens, forward.shares

    def refresh(self, **settings):
        self.forward.refresh(**settings)

    def hidden(self, ids_B_T, *others):
        self.tokens += ids_B_T.numel()
        return self.forward.hidden(ids_B_T, *others)

    def logits(self, hidden):
        return self.forward.logits(hidden)

    def since(self) -> int:
        tokens, self.tokens = self.tokens, 0
        return tokens


@pytest.fixture
def counted():
    model, tokenizer = tiny_model("llama")
    forward = Counting(forward_of(model))
    engines = []

    def make(**settings) -> tuple[Engine, Counting]:
        engines.append(Engine(forward, tokenizer, **settings))
        return engines[-1], forward

    yield make
    for engine in engines:
        engine.close()


async def talk(engine, prompt, *, seed: int, turns: int = 4, delay: float = 0.0):
    """A conversation: each prompt is the last one, its reply and something new. Returns (prompt, generation) pairs."""
    calls = []
    for turn, new in enumerate(prompts_of(turns, 3, 20, seed=seed)):
        generation = await ask(
            engine, prompt, seed=seed * 10 + turn, max_tokens=4 + seed % 9, temperature=(1.0, 0.7)[seed % 2], delay=delay * turn
        )
        calls.append((prompt, generation))
        prompt = (*prompt, *generation.completion_ids, *new)
    return calls


@pytest.mark.parametrize("budget", [0, 40_000, 1 << 30])
@pytest.mark.parametrize("arch", ARCHITECTURES)
async def test_conversations_of_groups_agree_with_full_forwards(arch, budget):
    """Shared prompts, prompts that begin alike, lone ones; turns that come when they come; a cache that is too small."""
    system = prompts_of(1, 80, 80, seed=7)[0]
    lone = prompts_of(2, 5, 60, seed=8)
    starts = [system] * 5 + [(*system[:70], 9, last) for last in range(4, 8)] + lone + [lone[0]]
    with engine_of(arch, max_batch=9, prefix_cache_bytes=budget) as engine:
        talks = [talk(engine, start, seed=n, delay=0.003 * (n % 4)) for n, start in enumerate(starts)]
        conversations = await asyncio.gather(*talks)
    model = reference_model(arch)
    for n, calls in enumerate(conversations):
        for prompt, generation in calls:
            expected = true_logprobs(model, prompt, generation.completion_ids, (1.0, 0.7)[n % 2])
            assert worst(generation.logprobs, expected) <= 1e-5


async def test_transformers_own_blocks_attend_to_trunks_too():
    model, tokenizer = tiny_model("qwen3")
    engine = Engine(CausalForward(model), tokenizer)
    [prompt] = prompts_of(1, 150, 150)
    try:
        conversations = await asyncio.gather(*(talk(engine, prompt, seed=2 * seed, turns=2) for seed in range(8)))
    finally:
        engine.close()
    for called, generation in (pair for calls in conversations for pair in calls):
        expected = true_logprobs(reference_model("qwen3"), called, generation.completion_ids)
        assert worst(generation.logprobs, expected) <= 1e-5


async def test_a_group_reads_its_prompt_once_and_attends_to_it_in_one_place(counted):
    engine, forward = counted()
    [prompt] = prompts_of(1, 150, 150)
    await asyncio.gather(*(ask(engine, prompt, seed=seed, max_tokens=1) for seed in range(8)))
    assert forward.since() == 150
    running = [asyncio.create_task(ask(engine, prompt, seed=seed, max_tokens=200)) for seed in range(8)]
    while len(engine._batch) < 8:
        await asyncio.sleep(0.001)
    assert {id(trunk) for trunk in engine._batch._trunks} == {id(engine._batch._trunks[0])}
    assert engine._batch._cache.positions < 150, "the slots hold only what follows"
    await asyncio.gather(*running)


async def test_prompts_that_begin_alike_read_the_beginning_once(counted):
    engine, forward = counted()
    [system] = prompts_of(1, 120, 120)
    prompts = [(*system, 5, last, 6) for last in range(4, 8)]
    await asyncio.gather(*(ask(engine, prompt, max_tokens=1) for prompt in prompts))
    assert forward.since() == 121 + 4 * 2, "the first token of the rest is the same, too"


async def test_a_turn_reads_only_what_is_new(counted):
    engine, forward = counted()
    [prompt] = prompts_of(1, 100, 100)
    first = await ask(engine, prompt, max_tokens=10)
    assert forward.since() == 100 + 9
    second = (*prompt, *first.completion_ids, 7, 8, 9)
    await ask(engine, second, max_tokens=1)
    assert forward.since() == 4, "three new tokens, and the last sampled one, which nothing had read yet"
    await ask(engine, second, seed=5, max_tokens=1)
    assert forward.since() == 0


async def test_a_sibling_that_comes_later_reads_nothing(counted):
    engine, forward = counted()
    [prompt] = prompts_of(1, 90, 90)
    running = asyncio.create_task(ask(engine, prompt, max_tokens=300))
    while not len(engine._batch):
        await asyncio.sleep(0.001)
    before = forward.tokens
    sibling = await ask(engine, prompt, seed=4, max_tokens=1)
    assert forward.tokens - before < 90
    await running
    assert worst(sibling.logprobs, true_logprobs(reference_model(), prompt, sibling.completion_ids)) <= 1e-5


async def test_an_update_empties_the_cache(counted):
    engine, forward = counted()
    [prompt] = prompts_of(1, 100, 100)
    await ask(engine, prompt, max_tokens=1)
    engine.use(forward, 1)
    forward.since()
    await ask(engine, prompt, max_tokens=1)
    assert forward.since() == 100


async def test_lockstep_shares_within_a_batch_and_keeps_nothing_after_it(counted):
    engine, forward = counted(deterministic=True)
    [prompt] = prompts_of(1, TRUNK_TOKENS * 2, TRUNK_TOKENS * 2)
    for _ in range(2):
        forward.since()
        await asyncio.gather(*(ask(engine, prompt, seed=seed, max_tokens=1) for seed in range(8)))
        assert forward.since() == len(prompt)
    assert len(engine._batch.prefixes) == 0


async def test_what_was_cached_does_not_change_what_is_sampled():
    """Ids are the same; logprobs differ by rounding at most."""

    async def run(budget: int):
        with engine_of(prefix_cache_bytes=budget) as engine:
            [prompt] = prompts_of(1, 80, 80, seed=3)
            return [pair for seed in range(3) for pair in await talk(engine, prompt, seed=seed)]

    for (_, without), (_, cached) in zip(await run(0), await run(1 << 30), strict=True):
        assert cached.completion_ids == without.completion_ids
        assert worst(cached.logprobs, without.logprobs) <= 1e-5


async def test_a_failed_forward_leaves_no_half_read_entry(counted, monkeypatch):
    engine, forward = counted()
    [prompt] = prompts_of(1, 100, 100)
    broken = lambda *_: (_ for _ in ()).throw(RuntimeError("no"))  # noqa: E731
    with monkeypatch.context() as patch:
        patch.setattr(forward, "hidden", broken)
        with pytest.raises(Exception, match="RuntimeError: no"):
            await ask(engine, prompt)
    assert len(engine._batch.prefixes) == 0
