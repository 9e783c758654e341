"""`_type: local`: settings reach the sampler, what a call leaves out comes from the config, and nothing loads torch early."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from pydantic import ValidationError

from nat_finetune.interfaces import ScoringChatModel
from nat_finetune.llms.local import LocalLLMConfig, local_llm
from nat_finetune.registry import Kind, Registry
from nat_finetune.tracing.context import recording
from nat_finetune.tracing.recorder import Recorder
from nat_finetune.tracing.traced import TracedChatModel
from tests.fixtures.models import tiny_model

ASK = [{"role": "user", "content": "move 3"}]


@dataclass
class Building:
    entry_name: str = "policy"
    seed: int = 7
    deterministic: bool = False


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    model, tokenizer = tiny_model("llama")
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


def opened(folder: str, **settings):
    return asynccontextmanager(local_llm)(LocalLLMConfig(model=folder, **settings), Building())


async def test_it_chats_and_scores_under_its_name(folder):
    async with opened(folder, max_tokens=4, temperature=0.5) as llm:
        assert isinstance(llm, ScoringChatModel)
        reply = await llm.chat(ASK)
        assert (reply.sampling.max_tokens, reply.sampling.temperature, reply.policy.llm) == (4, 0.5, "policy")
        changed = await llm.chat(ASK, max_tokens=2, temperature=0.0, top_k=3, top_p=0.9, stop=["x"], seed=5)
        assert changed.sampling.stop == ("x",)
        assert (changed.sampling.max_tokens, changed.sampling.temperature, changed.sampling.seed) == (2, 0.0, 5)
        assert changed.sampling.truncating == ("top_p", "top_k")
        assert len((await llm.score([ASK], [["a", "b"]]))[0]) == 2
        assert llm.policy.name == "policy"


async def test_calls_without_a_seed_differ_and_repeat_from_run_to_run(folder):
    async def run():
        async with opened(folder, max_tokens=6) as llm:
            return [(await llm.chat(ASK)).completion_ids for _ in range(3)]

    first = await run()
    assert len(set(first)) == 3
    assert await run() == first


async def test_calls_of_a_rollout_are_seeded_by_it(folder):
    async def rollout(llm, seed):
        with recording(Recorder("r", seed)) as recorder:
            await llm.chat(ASK)
            await llm.chat(ASK)
        return [call.completion_ids for call in recorder.events]

    async with opened(folder, max_tokens=6) as bare:
        llm = TracedChatModel(bare, seeded=LocalLLMConfig(model="x").samples_by_seed())
        one, other = await asyncio.gather(rollout(llm, 1), rollout(llm, 2))
        assert await rollout(llm, 1) == one != other


def test_truncating_settings_are_declared():
    assert LocalLLMConfig(model="x").truncating_sampling() == ()
    assert LocalLLMConfig(model="x", top_p=0.9, top_k=0).truncating_sampling() == ("top_p",)
    assert LocalLLMConfig(model="x", top_p=1.0, top_k=5).truncating_sampling() == ("top_k",)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_tokens": 0}, {"temperature": -1}, {"temperature": float("nan")}, {"top_p": 0}, {"top_p": 1.5}, {"top_k": -1},
        {"device": "tpu"}, {"dtype": "int8"}, {"model": ""}, {"stop": [""]}, {"max_batch": 0}, {"presence_penalty": 1.0},
    ],
)  # fmt: skip
def test_what_can_not_be_is_refused(settings):
    with pytest.raises(ValidationError):
        LocalLLMConfig(**{"model": "x", **settings})


def test_registering_it_loads_nothing_heavy():
    code = "import sys, nat_finetune.llms.local; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_it_is_registered():
    registry = Registry()
    registry.add_module(sys.modules["nat_finetune.llms.local"], origin="test")
    assert registry.get(Kind.LLM, "local").config_type is LocalLLMConfig
