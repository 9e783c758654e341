"""What the product does not use, on its own work: `torch.compile` for updates, transformers' continuous batching for rollouts.

    BENCH_SMOLLM2=… python benchmarks/speed/alternatives.py [--models tiny,smollm2] [--parts compile,batching] [--rounds 5]

`compile`: forward and backward of the decoder (LoRA of rank 16) over the eight pairs of a DPO step: transformers' modules eager
and compiled, on padded rows, and the product's packed sequence. `batching`: the 32 completions of a GRPO step: transformers'
`generate_batch`, its batched `generate`, and the product's engine. In turns, in one process; medians of wall seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import logging
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from protocol import Job
from workload import BATCH, GRPO_GENERATIONS, GRPO_TOKENS, model_folder, work_for

from nat_finetune.data.batches import Rows
from nat_finetune.local.budget import CPU_TOKENS
from nat_finetune.local.learner import make_learner
from nat_finetune.local.lora import attach_lora
from nat_finetune.local.model import load_model
from nat_finetune.local.policy import LocalPolicy
from nat_finetune.local.scores import TEMPERATURE
from nat_finetune.local.settings import LoraSettings, OptimiserSettings
from nat_finetune.types import SamplingParams

LORA = LoraSettings(16, 32.0)
Ways = dict[str, Callable[[], Any]]


def updates(folder: Path, job: Job) -> tuple[Ways, dict[str, float]]:
    """Forward and backward in three ways; and what compiling took, seconds."""
    loaded = load_model(str(folder), dtype="float32", device="cpu")
    plain = attach_lora(copy.deepcopy(loaded.model), LORA, seed=0).get_base_model().get_decoder()
    policy = LocalPolicy("policy", loaded)
    learner = make_learner(policy, OptimiserSettings(1e-4), lora=LORA, needs_reference=False, seed=0)
    sides = [
        (tuple(row["prompt_ids"]), tuple(row[name])) for row in job.data()[:BATCH] for name in ("chosen_ids", "rejected_ids")
    ]
    rows = Rows.of([p + c for p, c in sides], [[0] * len(p) + [1] * len(c) for p, c in sides])
    rows.columns[TEMPERATURE] = np.ones(len(rows.token_ids_N), np.float32)
    units = [(index, index + 1) for index in range(0, len(rows), 2)]
    batches = [rows.micro_batch(plan, learner.scorer.device) for plan in learner.scorer.plans(rows, units, CPU_TOKENS)]
    width = max(len(p) + len(c) for p, c in sides)
    ids = torch.tensor([[*p, *c, *[0] * (width - len(p) - len(c))] for p, c in sides])
    compiled = torch.compile(plain, dynamic=False)

    def padded(decoder: Any) -> None:
        decoder(input_ids=ids, use_cache=False).last_hidden_state.square().mean().backward()

    def packed() -> None:
        for batch in batches:
            learner.scorer.scores(batch).logprobs_B_T.sum().backward()

    began = time.perf_counter()
    padded(compiled)
    took = time.perf_counter() - began
    policy.close()
    ways = {"transformers": lambda: padded(plain), "transformers, compiled": lambda: padded(compiled)}
    return ways | {"nat-finetune (with logits and log-probabilities)": packed}, {"compiling": took}


def rollouts(policy: LocalPolicy, model: Any, job: Job) -> Ways:
    """The completions of a GRPO step in three ways, all of the same length."""
    from transformers import GenerationConfig

    prompts = [list(row["prompt_ids"]) for row in job.data() for _ in range(GRPO_GENERATIONS)]
    width = max(map(len, prompts))
    padded = torch.tensor([[0] * (width - len(ids)) + ids for ids in prompts])
    mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts])
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)
    said = {"max_new_tokens": GRPO_TOKENS, "do_sample": True, "pad_token_id": 0}
    sampled = GenerationConfig(**said, min_new_tokens=GRPO_TOKENS)
    paged = GenerationConfig(**said, eos_token_id=-1)

    async def ours() -> None:
        policy.updated(None)  # what an earlier round has kept serves no other
        params = [SamplingParams(max_tokens=GRPO_TOKENS, seed=seed) for seed in range(len(prompts))]
        made = [policy.engine.generate(tuple(p), s, stop_ids=()) for p, s in zip(prompts, params, strict=True)]
        await asyncio.gather(*made)

    def batching() -> Any:  # its manager is kept: starting one takes seconds
        return model.generate_batch(prompts, generation_config=paged, persistent_manager=True)

    return {
        "transformers, generate": lambda: model.generate(padded, attention_mask=mask, generation_config=sampled),
        "transformers, continuous batching": lambda: model.generate_batch(
            prompts, generation_config=paged, persistent_manager=True
        ),
        "nat-finetune": lambda: asyncio.run(ours()),
    }


def compare(ways: Ways, rounds: int) -> dict[str, float]:
    """Median seconds of each way, taken in turns after one round that does not count."""
    took: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, work in ways.items():
            began = time.perf_counter()
            work()
            took[name].append(time.perf_counter() - began)
    return {name: statistics.median(values[1:]) for name, values in took.items()}


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="tiny,smollm2")
    parser.add_argument("--parts", default="compile,batching")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cache", type=Path, default=Path(".cache/bench"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print("| work | way | s | of transformers' |\n| --- | --- | --- | --- |")
    for name in options.models.split(","):
        folder = model_folder(name, options.cache)
        file = str(work_for(folder, options.cache))
        for part in options.parts.split(","):
            extra: dict[str, float] = {}
            if part == "compile":
                ways, extra = updates(folder, Job("dpo", str(folder), "lora", 1, 1, options.threads, file))
                found = compare(ways, options.rounds)
            else:
                job = Job("grpo", str(folder), "lora", 1, 1, options.threads, file)
                loaded = load_model(str(folder), dtype="float32", device="cpu")
                model = copy.deepcopy(loaded.model)
                with closing(LocalPolicy("policy", loaded)) as policy:
                    found = compare(rollouts(policy, model, job), options.rounds)
            first = next(iter(found.values()))
            for way, seconds in found.items():
                print(f"| {name}, {part} | {way} | {seconds:.3f} | {seconds / first:.2f} |", flush=True)
            for what, seconds in extra.items():
                print(f"| {name}, {part} | {what}, once | {seconds:.1f} | |", flush=True)


if __name__ == "__main__":
    main()
