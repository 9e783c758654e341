"""Training takes turns with sampling; failures, cancellation and the end reach whoever waits."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
import torch

from nat_finetune.errors import BackendError
from nat_finetune.local.engine import Engine
from nat_finetune.local.forward import forward_of
from tests.fixtures.models import tiny_model
from tests.local.harness import ask, engine_of, reference_model, true_logprobs, worst


class Breaking:
    """A forward that fails on demand."""

    def __init__(self, forward):
        self.forward, self.broken = forward, False
        self.device, self.pass_tokens, self.shares = forward.device, forward.pass_tokens, forward.shares

    def refresh(self, **settings):
        self.forward.refresh(**settings)

    def hidden(self, *args):
        if self.broken:
            raise RuntimeError("out of memory, say")
        return self.forward.hidden(*args)

    def logits(self, hidden):
        return self.forward.logits(hidden)


async def until(condition) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


async def test_exclusive_waits_for_what_is_under_way_and_never_mixes_versions():
    model, tokenizer = tiny_model("llama")
    engine = Engine(forward_of(model), tokenizer)
    new, _ = tiny_model("llama", seed=1)

    def train() -> None:
        with engine.exclusive():
            assert len(engine._batch) == 0
            model.load_state_dict(new.state_dict())
            time.sleep(0.02)
            engine.use(engine._forward, 1)

    try:
        early = [asyncio.create_task(ask(engine, (5, 6, i), max_tokens=200, seed=i)) for i in range(4, 8)]
        await until(lambda: len(engine._batch) == 4)
        training = asyncio.create_task(asyncio.to_thread(train))
        await until(lambda: engine._wanted == 1)
        late = [asyncio.create_task(ask(engine, (5, 6, i), max_tokens=20, seed=i)) for i in range(4, 8)]
        await training
        for version, tasks in enumerate((early, late)):
            for last, task in enumerate(tasks, start=4):
                generation = await task
                assert generation.policy_version == version
                expected = true_logprobs(reference_model(seed=version), (5, 6, last), generation.completion_ids)
                assert worst(generation.logprobs, expected) <= 1e-5
    finally:
        engine.close()


async def test_exclusive_may_be_nested_and_works_on_the_event_loops_thread():
    with engine_of() as engine:
        waiting = asyncio.create_task(ask(engine, (5, 6), max_tokens=100))
        await until(lambda: len(engine._batch) == 1)
        with engine.exclusive(), engine.exclusive():
            assert len(engine._batch) == 0
        assert len((await waiting).completion_ids) == 100


async def test_a_failing_model_reaches_every_caller_and_the_engine_goes_on():
    model, tokenizer = tiny_model("llama")
    forward = Breaking(forward_of(model))
    engine = Engine(forward, tokenizer, max_batch=2)
    try:
        before = await ask(engine, (5, 6))
        forward.broken = True
        results = await asyncio.gather(
            *(ask(engine, (5, i), max_tokens=50) for i in range(5, 9)), engine.score([((5,), (6,))]), return_exceptions=True
        )
        assert [type(result) for result in results] == [BackendError] * 5
        assert "RuntimeError: out of memory, say" in str(results[0])
        forward.broken = False
        assert await ask(engine, (5, 6)) == before
    finally:
        engine.close()


async def test_a_cancelled_request_frees_its_row():
    with engine_of(max_batch=1) as engine:
        endless = asyncio.create_task(ask(engine, (5, 6), max_tokens=100_000))
        await until(lambda: len(engine._batch) == 1)
        endless.cancel()
        async with asyncio.timeout(10):
            assert len((await ask(engine, (5, 6))).completion_ids) == 8
        with pytest.raises(asyncio.CancelledError):
            await endless


async def test_a_cancelled_rollout_does_not_hold_up_lockstep():
    with engine_of(deterministic=True) as engine:
        engine.rollout_started("a")
        engine.rollout_started("b")
        waiting = asyncio.create_task(ask(engine, (5, 6), key="a"))
        await asyncio.sleep(0.05)
        assert not waiting.done(), "b may still ask"
        engine.rollout_ended("b")
        async with asyncio.timeout(10):
            await waiting


async def test_closing_ends_the_thread_and_answers_whoever_waits():
    with engine_of(max_batch=1) as engine:
        tasks = [asyncio.create_task(ask(engine, (5, 6), max_tokens=100_000)) for _ in range(3)]
        await until(lambda: len(engine._batch) == 1)
        await asyncio.to_thread(engine.close)
        async with asyncio.timeout(10):
            results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [BackendError] * 3
        with pytest.raises(BackendError, match="closed"):
            await ask(engine, (5, 6))
        with pytest.raises(BackendError, match="closed"):
            await engine.score([((5,), (6,))])
    assert not [thread for thread in threading.enumerate() if thread.name == "nat-finetune-engine" and thread.is_alive()]


async def test_caches_do_not_outlive_a_version():
    model, tokenizer = tiny_model("llama")
    engine = Engine(forward_of(model), tokenizer)
    try:
        await ask(engine, (5, 6, 7))
        with engine.exclusive(), torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)
            engine.use(engine._forward, 1)
        again = await ask(engine, (5, 6, 7))
        assert worst(again.logprobs, true_logprobs(model, (5, 6, 7), again.completion_ids)) <= 1e-5
    finally:
        engine.close()
