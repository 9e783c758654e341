"""What the tests of the engine share: an engine over a tiny model, and the truth about it by other means."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import contextmanager

import torch

from nat_finetune.local.engine import Engine, Generation
from nat_finetune.local.forward import forward_of
from nat_finetune.types import SamplingParams
from tests.fixtures.models import tiny_model

Ids = Sequence[int]


@contextmanager
def engine_of(arch: str = "llama", seed: int = 0, **settings):
    model, tokenizer = tiny_model(arch, seed)
    engine = Engine(forward_of(model), tokenizer, **settings)
    try:
        yield engine
    finally:
        engine.close()


def reference_model(arch: str = "llama", seed: int = 0):
    """The same weights in a model of their own, with transformers' eager attention."""
    model, _ = tiny_model(arch, seed)
    model.set_attn_implementation("eager")
    return model


@torch.no_grad()
def true_logprobs(model, prompt: Ids, completion: Ids, temperature: float = 1.0) -> list[float]:
    """One full forward over one sequence."""
    logits = model(input_ids=torch.tensor([[*prompt, *completion]]), use_cache=False).logits[0, len(prompt) - 1 : -1]
    table = (logits.float() / temperature).log_softmax(-1)
    return table[torch.arange(len(completion)), torch.tensor(completion)].tolist()


def prompts_of(count: int, low: int, high: int, seed: int = 0, vocabulary: int = 280) -> list[tuple[int, ...]]:
    rng = random.Random(seed)
    return [tuple(rng.randrange(4, vocabulary) for _ in range(rng.randint(low, high))) for _ in range(count)]


def worst(found: Sequence[float], expected: Sequence[float]) -> float:
    assert len(found) == len(expected)
    return max(abs(a - b) for a, b in zip(found, expected, strict=True))


async def ask(engine: Engine, prompt: Ids, *, key: str = "", stop_ids: Ids = (), delay: float = 0.0, **sampling) -> Generation:
    await asyncio.sleep(delay)
    params = SamplingParams(**{"max_tokens": 8, "seed": 0, **sampling})
    return await engine.generate(prompt, params, stop_ids=stop_ids, order_key=key)
