"""Several turns with transformers' `generate`: the peer's agent, and the loop that the engine is held against.

TRL 1.16 has two ways to rollouts of several turns. `environment_factory` needs a model that calls tools; a model with random
weights, or one of 135 M, does not. `rollout_func` is the other: it gets the prompts and gives prompt ids, completion ids and a
mask of what was sampled. This one makes each turn one batched `generate` over all conversations, as TRL's own generation does:
left-padded, sampled at temperature 1, the whole conversation read anew in each turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from protocol import Job, Spent
from transformers import AutoModelForCausalLM, AutoTokenizer
from workload import AGENT_TOKENS, TURNS

LOOP_BATCH = 8
"""Conversations of one `generate` call of the loop: of like lengths, so that little is padding."""


def between(tokenizer: Any, observation: str) -> list[int]:
    """What stands between a reply and the next one: its end, the observation, the beginning of the assistant's turn."""
    text = f"<|im_end|>\n<|im_start|>user\n{observation}<|im_end|>\n<|im_start|>assistant\n"
    return list(tokenizer.encode(text, add_special_tokens=False))


@torch.no_grad()
def generate(model: Any, rows: list[list[int]], pad: int, tokens: int) -> list[list[int]]:
    """Exactly so many new tokens for each row."""
    width, device = max(map(len, rows)), model.device
    ids = torch.tensor([[pad] * (width - len(row)) + row for row in rows], device=device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device)
    limits = {"max_new_tokens": tokens, "min_new_tokens": tokens}
    plain = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "pad_token_id": pad, "use_cache": True}
    out = model.generate(input_ids=ids, attention_mask=mask, **limits, **plain)
    return [row.tolist() for row in out[:, width:]]


class Turns:
    """A `rollout_func`."""

    def __init__(self, tokenizer: Any, data: list[dict[str, Any]]) -> None:
        self._tokenizer = tokenizer
        self._by_text = {row["prompt"][-1]["content"]: row for row in data}
        self.sampled = 0

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """Four turns of all prompts at once."""
        rows = [self._by_text[prompt[-1]["content"]] for prompt in prompts]
        completions: list[list[int]] = [[] for _ in rows]
        masks: list[list[int]] = [[] for _ in rows]
        model = trainer.accelerator.unwrap_model(trainer.model)
        model.eval()
        for turn in range(TURNS):
            whole = [row["prompt_ids"] + completion for row, completion in zip(rows, completions, strict=True)]
            said = generate(model, whole, self._tokenizer.pad_token_id, AGENT_TOKENS)
            for row, reply, completion, mask in zip(rows, said, completions, masks, strict=True):
                heard = between(self._tokenizer, row["observations"][turn]) if turn < TURNS - 1 else []
                completion += reply + heard
                mask += [1] * len(reply) + [0] * len(heard)
        model.train()
        self.sampled = sum(map(sum, masks))
        ids = {"prompt_ids": [row["prompt_ids"] for row in rows], "completion_ids": completions}
        return {**ids, "logprobs": None, "env_mask": masks}


def generate_loop(job: Job) -> Callable[[], dict[str, Any]]:
    """All conversations of the load, turn by turn: sorted by length, a batch at a time, each as long as its longest reply."""
    tokenizer = AutoTokenizer.from_pretrained(job.model)
    dtype = getattr(torch, job.dtype)
    model = AutoModelForCausalLM.from_pretrained(job.model, dtype=dtype).to(job.device).eval()
    data = job.data()

    def unit() -> dict[str, Any]:
        sampled = 0
        with Spent() as spent:
            so_far = [list(row["prompt_ids"]) for row in data]
            for turn in range(TURNS):
                order = sorted(range(len(data)), key=lambda place: len(so_far[place]))
                for start in range(0, len(order), LOOP_BATCH):
                    places = order[start : start + LOOP_BATCH]
                    limits = [data[place]["tokens"][turn] for place in places]
                    made = generate(model, [so_far[place] for place in places], tokenizer.pad_token_id, max(limits))
                    for place, reply, limit in zip(places, made, limits, strict=True):
                        heard = between(tokenizer, data[place]["observations"][turn]) if turn < TURNS - 1 else []
                        so_far[place] += reply[:limit] + heard
                        sampled += limit
        return {"step": spent.over(1), "generation": spent.over(1), "sampled": sampled}

    return unit
