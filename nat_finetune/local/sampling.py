"""Drawing one token per row from logits, all rows at once, with a random stream of its own for every request.

A draw is the inverse of the cumulative distribution at one uniform number. The uniform numbers are those of SplitMix64
(Steele, Lea & Flood 2014) seeded with the request's seed: number t belongs to token t, whatever else is in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer, as are the two below
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB
_BLOCK = 256
_TOP = 1024


@dataclass(slots=True)
class Draw:
    """How to draw for each row of a batch."""

    temperature_B: torch.Tensor
    """float32; 0 is greedy."""
    seed_B: torch.Tensor
    """int64."""
    step_B: torch.Tensor
    """int64: tokens that the row has sampled before."""
    top_k_B: torch.Tensor | None = None
    """int64, 0 for none; None where no row asks for it."""
    top_p_B: torch.Tensor | None = None
    """float32, 1 for none; None where no row asks for it."""
    greedy: bool = True
    """Whether some row may have temperature 0."""
    scales: bool = True
    """Whether some row may have a temperature other than 0 and 1."""


def uniform(seed_B: torch.Tensor, step_B: torch.Tensor) -> torch.Tensor:
    """Number `step` of each seed's stream, float64 in [0, 1), [B]."""
    state = seed_B + (step_B + 1) * _GOLDEN
    state = (state ^ _shift(state, 30)) * _MIX_1
    state = (state ^ _shift(state, 27)) * _MIX_2
    state = state ^ _shift(state, 31)
    return _shift(state, 11).double() * 2.0**-53


def _shift(value: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical right shift: torch's is arithmetic."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def scaled(logits_B_V: torch.Tensor, temperature_B: torch.Tensor) -> torch.Tensor:
    """Logits at the sampling temperature, float32; greedy rows at temperature 1."""
    divisor = torch.where(temperature_B > 0, temperature_B, torch.ones_like(temperature_B))
    return logits_B_V.float() / divisor[:, None]


def sample(logits_B_V: torch.Tensor, draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a token for each row.

    Returns:
        Tokens [B] (int64) and their logprobs [B] (float32, nats) in the full softmax at the row's temperature: top_k and
        top_p change the draw, not the logprob. Greedy rows report the logprob at temperature 1.
    """
    logits_B_V = scaled(logits_B_V, draw.temperature_B) if draw.scales else logits_B_V.float()
    full_B_V = probs_B_V = logits_B_V.softmax(-1)
    if draw.top_k_B is not None or draw.top_p_B is not None:
        probs_B_V = truncated(probs_B_V, draw.top_k_B, draw.top_p_B)
    tokens_B = inverse_cdf(probs_B_V, uniform(draw.seed_B, draw.step_B))
    if draw.greedy:
        tokens_B = torch.where(draw.temperature_B > 0, tokens_B, logits_B_V.argmax(-1))
    best_B = logits_B_V.amax(-1)
    # log p = logit - log of the softmax's sum; that sum, without another pass over the vocabulary, from the largest logit
    return tokens_B, logits_B_V.gather(1, tokens_B[:, None])[:, 0] - best_B + full_B_V.amax(-1).log()


def inverse_cdf(probs_B_V: torch.Tensor, uniform_B: torch.Tensor) -> torch.Tensor:
    """The first index at which the cumulative (unnormalised) probability exceeds `uniform` of its total, [B].

    Blocks first, then inside one block: a cumulative sum over the vocabulary costs more than the draw is worth, and loses the
    tail in float32. An index with probability 0 is never returned.
    """
    rows, vocabulary = probs_B_V.shape
    blocks = -(-vocabulary // _BLOCK)
    if blocks * _BLOCK != vocabulary:
        probs_B_V = torch.nn.functional.pad(probs_B_V, (0, blocks * _BLOCK - vocabulary))
    probs = probs_B_V.view(rows, blocks, _BLOCK)
    mass = probs.sum(-1).double().cumsum(-1)  # a block's 256 terms lose nothing in float32, the blocks' sum would
    target = uniform_B[:, None] * mass[:, -1:]
    block = torch.searchsorted(mass, target, right=True).clamp_(max=blocks - 1)
    before = torch.where(block > 0, mass.gather(1, (block - 1).clamp(min=0)), torch.zeros_like(target))
    inside = probs.gather(1, block[:, :, None].expand(-1, 1, _BLOCK))[:, 0].double().cumsum(-1)
    target = torch.minimum(target - before, inside[:, -1:] * (1 - 2.0**-52))
    index = torch.searchsorted(inside, target, right=True)
    return (block * _BLOCK + index)[:, 0].clamp_(max=vocabulary - 1)


def truncated(probs_B_V: torch.Tensor, top_k_B: torch.Tensor | None, top_p_B: torch.Tensor | None) -> torch.Tensor:
    """Probabilities with all but the kept tokens at 0 (not renormalised).

    top_k keeps the k most probable; top_p the fewest most probable whose mass reaches p; both: the tokens that both keep,
    p of the mass that top_k left. The most probable token is always kept.
    """
    vocabulary = probs_B_V.shape[1]
    width = min(_TOP, vocabulary)
    if top_k_B is not None:
        width = min(vocabulary, max(width, int(top_k_B.max())))
    values, order = probs_B_V.topk(width)
    if top_p_B is not None and width < vocabulary and bool((values.sum(-1) < top_p_B).any()):
        values, order = probs_B_V.sort(descending=True)
    kept = torch.ones_like(values, dtype=torch.bool)
    if top_k_B is not None:
        rank = torch.arange(values.shape[1], device=values.device)
        kept &= (rank < top_k_B[:, None]) | (top_k_B[:, None] == 0)
    if top_p_B is not None:
        left = values * kept
        mass = left.sum(-1, keepdim=True) if top_k_B is not None else 1.0
        before = left.cumsum(-1) - left
        kept &= (before < top_p_B[:, None] * mass) | (top_p_B[:, None] >= 1)
        kept[:, 0] = True
    result = torch.zeros_like(probs_B_V).scatter_(1, order, values * kept)
    untouched = torch.ones(probs_B_V.shape[0], dtype=torch.bool, device=probs_B_V.device)
    if top_k_B is not None:
        untouched &= top_k_B == 0
    if top_p_B is not None:
        untouched &= top_p_B >= 1
    return torch.where(untouched[:, None], probs_B_V, result)
