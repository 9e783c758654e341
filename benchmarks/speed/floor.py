"""What the arithmetic allows: operations and bytes that the work needs, over the rates that this machine reaches.

Counted is what an ideal implementation does: a prompt that several completions share is read once, padding never, logits only
where they are used. 2 operations for each weight and token forward; backward the same for activations, and again for weights
that are trained. Attention over n earlier positions: 4 n · hidden per layer and token, forward.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from protocol import Job
from workload import AGENT_GENERATIONS, AGENT_TOKENS, BATCH, GRPO_GENERATIONS, GRPO_TOKENS, TURNS

from nat_finetune.local.onednn import onednn_linear


@dataclass(frozen=True, slots=True)
class Rates:
    """Of this machine."""

    matmul: float
    """Operations a second, of torch's own large products in the model's dtype."""
    bandwidth: float
    """Bytes a second, read."""
    onednn: float | None = None
    """Operations a second of oneDNN's products, which the product uses where they are faster; None off the CPU."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A Llama-like model."""

    layers: int
    hidden: int
    weights: int
    """Of all layers; each is used once for a token."""
    head: int
    """Of the output layer: hidden · vocabulary."""
    kv: int
    """Numbers that a token leaves in the cache."""
    bytes_each: int

    @classmethod
    def of(cls, folder: str, dtype: str) -> Shape:
        """From a model's folder."""
        c = json.loads((Path(folder) / "config.json").read_text())
        hidden, heads = c["hidden_size"], c["num_attention_heads"]
        size = c.get("head_dim") or hidden // heads
        key_values = c["num_key_value_heads"] * size
        layer = hidden * (2 * heads * size + 2 * key_values) + 3 * hidden * c["intermediate_size"]
        layers = c["num_hidden_layers"]
        each = 4 if dtype == "float32" else 2
        return cls(layers, hidden, layers * layer, hidden * c["vocab_size"], 2 * layers * key_values, each)


@dataclass(frozen=True, slots=True)
class Need:
    """Operations of a step's update and of its generation, and bytes that the latter's decoding reads."""

    update: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0
    decode_bytes: float = 0.0

    def seconds(self, rates: Rates) -> dict[str, float]:
        """The least that each part takes."""
        generation = self.prefill / rates.matmul + max(self.decode / rates.matmul, self.decode_bytes / rates.bandwidth)
        update = self.update / rates.matmul
        return {"step": update + generation, "update": update, "generation": generation}


def need(job: Job) -> Need:
    """What a step of a job needs."""
    shape, rows = Shape.of(job.model, job.dtype), job.data()
    if job.work == "dpo":
        pairs = rows[:BATCH]
        trees = [(len(p["prompt_ids"]), [len(p["chosen_ids"]) - 1, len(p["rejected_ids"]) - 1]) for p in pairs]
        return Need(update=_trained(shape, trees, job.mode) + _read(shape, trees))
    if job.work == "grpo":
        count, tokens, turns, heard = GRPO_GENERATIONS, GRPO_TOKENS, 1, 0
    else:
        count, tokens, turns, heard = AGENT_GENERATIONS, AGENT_TOKENS, TURNS, 20
    if job.work == "load":
        return _talk(shape, [(len(r["prompt_ids"]), r["tokens"], 1, heard) for r in rows])
    talks = [(len(r["prompt_ids"]), [tokens] * turns, count, heard) for r in rows]
    trees = [(prompt, [sum(said) + heard * (len(said) - 1)] * n) for prompt, said, n, heard in talks]
    trained = count * tokens * turns * len(rows)
    update = _trained(shape, trees, job.mode, trained)
    made = _talk(shape, talks)
    return Need(update, made.prefill, made.decode, made.decode_bytes)


def _tokens(trees: list[tuple[int, list[int]]]) -> int:
    return sum(prompt + sum(ends) for prompt, ends in trees)


def _attended(trees: list[tuple[int, list[int]]]) -> float:
    """Pairs of a token and one that it looks at."""
    return sum(prompt**2 / 2 + sum(end * (prompt + end / 2) for end in ends) for prompt, ends in trees)


def _read(shape: Shape, trees: list[tuple[int, list[int]]], at: int | None = None) -> float:
    """A forward pass with logits at the completions' tokens."""
    logits = sum(sum(ends) for _, ends in trees) if at is None else at
    attention = 4 * shape.hidden * shape.layers * _attended(trees)
    return 2.0 * shape.weights * _tokens(trees) + attention + 2.0 * shape.head * logits


def _trained(shape: Shape, trees: list[tuple[int, list[int]]], mode: str, at: int | None = None) -> float:
    """Forward and backward: with LoRA the base's weights have no gradient."""
    return _read(shape, trees, at) * (2.0 if mode == "lora" else 3.0)


def _talk(shape: Shape, talks: list[tuple[int, list[int], int, int]]) -> Need:
    """Sampling: prompt, replies' lengths, conversations that share the prompt, tokens heard between two replies."""
    prefill = sum(_read(shape, [(prompt, [])], 1) for prompt, *_ in talks)
    decode = read = 0.0
    longest = [max(said[turn] for _, said, *_ in talks) for turn in range(len(talks[0][1]))]
    for prompt, said, count, heard in talks:
        length = prompt
        for tokens in said:
            new = tokens + (heard if length > prompt else 0)
            each = 2.0 * (shape.weights * new + shape.head * tokens) + 4 * shape.hidden * shape.layers * new * length
            decode += count * each
            read += count * tokens * length * shape.kv * shape.bytes_each
            length += new
    steps = sum(longest)  # every step reads all weights once, for all rows
    return Need(0.0, prefill, decode, read + steps * (shape.weights + shape.head) * shape.bytes_each)


def measure(*, device: str = "cpu", dtype: str = "float32", threads: int = 1, seconds: float = 1.5) -> Rates:
    """The rates that a few large operations reach here."""
    torch.set_num_threads(threads)
    kind = getattr(torch, dtype)
    size, length = (1024, 1 << 29) if device == "cpu" else (8192, 1 << 32)
    a, b = torch.ones(size, size, dtype=kind, device=device), torch.ones(size, size, dtype=kind, device=device)
    data = torch.ones(length // kind.itemsize, dtype=kind, device=device)
    matmul = _best(lambda: torch.mm(a, b), device, seconds)
    read = _best(lambda: data.sum(), device, seconds)
    onednn = None
    if device == "cpu" and kind is torch.float32 and torch.backends.mkldnn.is_available():
        onednn = 2.0 * size**3 / _best(lambda: onednn_linear(a, b, None), device, seconds)
    return Rates(2.0 * size**3 / matmul, length / read, onednn)


def _best(work: Any, device: str, seconds: float) -> float:
    """The time of one call: the median of the faster half."""
    times, end = [], time.perf_counter() + seconds
    work()
    while time.perf_counter() < end or len(times) < 5:
        if device != "cpu":
            torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        if device != "cpu":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    times.sort()
    return statistics.median(times[: max(1, len(times) // 2)])
