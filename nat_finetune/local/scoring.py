"""Logprobs of given completions, teacher-forced: equal prompts are encoded once, and so are equal beginnings of completions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from nat_finetune.local.forward import Forward
from nat_finetune.local.kv_cache import Extend, Prefill, SlotCache
from nat_finetune.local.sampling import scaled

END = -1
"""In a completion's ids: the policy ends its turn here, by whichever of its end tokens."""

_LOGIT_ROWS = 512
"""Positions whose logits are held at once."""

Ids = tuple[int, ...]
ScoreRow = tuple[Ids, Ids]
"""Prompt ids, completion ids."""


def score(forward: Forward, rows: Sequence[ScoreRow], *, temperature: float, stop_ids: Sequence[int]) -> list[list[float]]:
    """Log-probability of each completion token given all before it.

    Args:
        forward: the model.
        rows: (prompt ids, completion ids), prompts not empty; END in a completion is any of `stop_ids`.
        temperature: sampling temperature; at 0 the most probable token has logprob 0 and every other -inf.
        stop_ids: end-of-turn tokens.

    Returns:
        A list of nats for each row, as long as its completion.
    """
    forward.refresh()
    results: list[list[float]] = [[] for _ in rows]
    prompts: dict[Ids, list[int]] = {}
    for index, (prompt, _) in enumerate(rows):
        prompts.setdefault(prompt, []).append(index)
    for chunk in _chunks(prompts, rows, forward.pass_tokens):
        _score_chunk(forward, chunk, rows, results, temperature, stop_ids)
    return results


def _chunks(prompts: dict[Ids, list[int]], rows: Sequence[ScoreRow], budget: int) -> Iterator[list[tuple[Ids, list[int]]]]:
    """Prompts with their rows, sorted by length, in chunks whose prompts and whose completions each fit the token budget."""
    chunk: list[tuple[Ids, list[int]]] = []
    tokens = 0
    for prompt in sorted(prompts, key=len):
        indices = prompts[prompt]
        suffix_tokens = sum(len(rows[index][1]) - 1 for index in indices)
        if chunk and ((len(chunk) + 1) * len(prompt) > budget or tokens + suffix_tokens > budget):
            yield chunk
            chunk, tokens = [], 0
        chunk.append((prompt, indices))
        tokens += suffix_tokens
    if chunk:
        yield chunk


def _score_chunk(
    forward: Forward,
    chunk: Sequence[tuple[Ids, list[int]]],
    rows: Sequence[ScoreRow],
    results: list[list[float]],
    temperature: float,
    stop_ids: Sequence[int],
) -> None:
    # What each completion needs beyond its prompt: hidden states after all of its tokens but the last.
    suffixes: dict[tuple[int, Ids], int] = {}
    for place, (_, indices) in enumerate(chunk):
        for index in indices:
            suffix = rows[index][1][:-1]
            if suffix:
                suffixes.setdefault((place, suffix), len(suffixes))
    hidden_N, starts = _encode(forward, [prompt for prompt, _ in chunk], list(suffixes))
    targets: list[tuple[int, int, int]] = []
    for place, (_, indices) in enumerate(chunk):
        for index in indices:
            completion = rows[index][1]
            results[index] = [0.0] * len(completion)
            for offset, token in enumerate(completion):
                state = place if offset == 0 else starts[suffixes[place, completion[:-1]]] + offset - 1
                targets.append((state, token, index))
    values = _target_logprobs(forward, hidden_N, targets, temperature, stop_ids)
    position = dict.fromkeys((index for _, _, index in targets), 0)
    for (_, _, index), value in zip(targets, values, strict=True):
        results[index][position[index]] = value
        position[index] += 1


def _encode(forward: Forward, prompts: Sequence[Ids], suffixes: Sequence[tuple[int, Ids]]) -> tuple[torch.Tensor, list[int]]:
    """Hidden states: after each prompt, then after each token of each suffix, [N, hidden size]; where each suffix starts."""
    device, cache = forward.device, SlotCache()
    width = max((len(suffix) for _, suffix in suffixes), default=0)
    longest = max(map(len, prompts))
    cache.reserve(len(prompts), longest + width, used=0)
    ids, last = _padded(prompts, device)
    positions = torch.arange(longest, device=device).expand(len(prompts), -1)
    hidden = forward.hidden(ids, positions, Prefill(cache, 0, positions))
    states = [hidden[torch.arange(len(prompts), device=device), last]]
    if not suffixes:
        return states[0], []
    prompt_of = torch.tensor([place for place, _ in suffixes], device=device)
    cache.spread(prompt_of, longest)
    ids, _ = _padded([suffix for _, suffix in suffixes], device)
    begin = (last + 1)[prompt_of]
    positions = begin[:, None] + torch.arange(width, device=device)
    hidden = forward.hidden(ids, positions, Extend(cache, positions, longest + width))
    starts, total = [], len(prompts)
    for row, (_, suffix) in enumerate(suffixes):
        starts.append(total)
        states.append(hidden[row, : len(suffix)])
        total += len(suffix)
    return torch.cat(states), starts


def _target_logprobs(
    forward: Forward,
    hidden_N: torch.Tensor,
    targets: Sequence[tuple[int, int, int]],
    temperature: float,
    stop_ids: Sequence[int],
) -> list[float]:
    """Logprob of each (state, token, …) target, in their order."""
    values = torch.zeros(len(targets), device=hidden_N.device)
    states = torch.tensor([state for state, _, _ in targets], device=hidden_N.device)
    tokens = torch.tensor([token for _, token, _ in targets], device=hidden_N.device)
    stops = torch.tensor(list(stop_ids), device=hidden_N.device, dtype=torch.long)
    for start in range(0, hidden_N.shape[0], _LOGIT_ROWS):
        chosen = ((states >= start) & (states < start + _LOGIT_ROWS)).nonzero()[:, 0]
        if not len(chosen):
            continue
        logits = forward.logits(hidden_N[start : start + _LOGIT_ROWS])
        logprobs = _all_logprobs(logits, temperature)
        row, token = states[chosen] - start, tokens[chosen]
        picked = logprobs[row, token.clamp(min=0)]
        if len(stops):
            picked = torch.where(token == END, logprobs[:, stops].logsumexp(-1)[row], picked)
        values[chosen] = picked
    result: list[float] = values.tolist()
    return result


def _all_logprobs(logits_N_V: torch.Tensor, temperature: float) -> torch.Tensor:
    if temperature == 0:
        best = logits_N_V.argmax(-1, keepdim=True)
        return torch.full_like(logits_N_V, float("-inf"), dtype=torch.float32).scatter_(1, best, 0.0)
    return scaled(logits_N_V, torch.full_like(logits_N_V[:, 0], temperature, dtype=torch.float32)).log_softmax(-1)


def _padded(rows: Sequence[Ids], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded ids [B, T] and the index of each row's last token [B]."""
    width = max(map(len, rows))
    ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], device=device)
    return ids, torch.tensor([len(row) - 1 for row in rows], device=device)
