"""The same promises on a CUDA device: `make test-gpu`, a few minutes. Skipped where there is none.

Agreement of sampler and trainer in float32 and in bf16, a GRPO and a DPO run of the shipped configs with an improvement,
and memory that does not grow from update to update.
"""

import asyncio
import json

import pytest
import torch

from nat_finetune.local.engine import Engine
from nat_finetune.local.forward import forward_of
from nat_finetune.local.lora import attach_lora
from nat_finetune.local.model import LoadedModel, weights_digest
from nat_finetune.local.policy import LocalPolicy
from nat_finetune.local.settings import LoraSettings
from nat_finetune.types import SamplingParams
from tests.e2e.runs import ROOT, cli, only_run
from tests.fixtures.models import ARCHITECTURES, tiny_model
from tests.local.harness import ask

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]

BOUNDS = {torch.float32: 1e-3, torch.bfloat16: 0.25}
"""Largest difference of a token's logprob, nats: TF32 is off, and bf16 rounds logits to 8 bits."""


def teacher_forced(model, prompt_ids, completion_ids):
    ids = torch.tensor([[*prompt_ids, *completion_ids]], device="cuda")
    with torch.no_grad():
        logprobs = model(input_ids=ids).logits[0, :-1].float().log_softmax(-1)
    return logprobs[len(prompt_ids) - 1 :].gather(1, ids[0, len(prompt_ids) :, None])[:, 0].cpu()


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("arch", ARCHITECTURES)
async def test_the_sampler_agrees_with_a_forward_pass(arch, dtype):
    model, tokenizer = tiny_model(arch)
    model = model.to("cuda", dtype)
    digest = weights_digest(model.state_dict().items())
    policy = LocalPolicy("policy", LoadedModel(model, tokenizer, torch.device("cuda"), dtype, "here", digest))
    try:
        texts = ["move 3", "the quick brown fox jumps over the lazy dog", "move 1 2 3 4 5"]
        replies = await asyncio.gather(
            *(
                policy.chat([{"role": "user", "content": text}], SamplingParams(max_tokens=12, seed=seed))
                for seed, text in enumerate(texts * 4)
            )
        )
        for reply in replies:
            expected = teacher_forced(policy.model, reply.prompt_ids, reply.completion_ids)
            assert (expected - torch.tensor(reply.logprobs)).abs().max() <= BOUNDS[dtype]
    finally:
        policy.close()


async def test_decode_steps_are_recorded_and_follow_the_weights():
    """One recording serves many steps and both versions: it reads the adapter where training changes it."""
    base, tokenizer = tiny_model("llama")
    model = attach_lora(base.to("cuda"), LoraSettings(rank=4), seed=0)
    engine = Engine(forward_of(base), tokenizer)
    try:
        for version in range(2):
            asked = [ask(engine, (5, 6, last), seed=last, max_tokens=12 + last) for last in range(4, 14)]
            for last, generation in enumerate(await asyncio.gather(*asked), start=4):
                expected = teacher_forced(model, (5, 6, last), generation.completion_ids)
                assert (expected - torch.tensor(generation.logprobs)).abs().max() <= BOUNDS[torch.float32]
            assert 0 < len(engine._batch._graphs) <= 3
            assert engine._batch._graphs.usable
            with engine.exclusive(), torch.no_grad():
                for name, parameter in model.named_parameters():
                    if "lora_B" in name:
                        parameter.add_(0.1)
                engine.use(engine._forward, version + 1)
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("name", "overrides", "metric", "least"),
    [
        ("grpo_tic_tac_toe", ["finetuning.num_epochs=4"], "outcome", 0.05),
        ("dpo_tic_tac_toe", ["trainer_adapters.here.epochs=4"], "critical_rate", 0.1),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_run_improves_the_policy(name, overrides, metric, least, dtype, tmp_path):
    settings = [*overrides, "llms.policy.device=cuda", f"llms.policy.dtype={dtype}"]
    options = [word for override in settings for word in ("-o", override)]
    done = cli("run", str(ROOT / "configs" / f"{name}.yml"), "--output-dir", str(tmp_path / "runs"), *options, timeout=240)
    assert done.returncode == 0, done.stderr
    report = json.loads((only_run(tmp_path) / "report.json").read_text(encoding="utf-8"))
    assert report["policy"]["device"].startswith("cuda")
    assert report["metrics"][metric]["gain"]["low"] >= least


async def test_memory_does_not_grow_from_request_to_request():
    model, tokenizer = tiny_model("llama")
    model = model.to("cuda", torch.bfloat16)
    digest = weights_digest(model.state_dict().items())
    policy = LocalPolicy("policy", LoadedModel(model, tokenizer, torch.device("cuda"), torch.bfloat16, "here", digest))
    used = []
    try:
        for _ in range(6):
            await asyncio.gather(
                *(
                    policy.chat([{"role": "user", "content": "move 1 2 3"}], SamplingParams(max_tokens=16, seed=s))
                    for s in range(32)
                )
            )
            torch.cuda.synchronize()
            used.append(torch.cuda.memory_allocated())
    finally:
        policy.close()
    assert used[-1] <= used[1] * 1.01
