"""Log-probabilities of given tokens, at the temperature they were sampled with.

This file holds the one shift by one of the project: the logits at position t-1 predict the token at position t, and the
result is stored at t, beside its token. The first position has no prediction; it holds 0 and may not be selected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from nat_finetune.algorithms.linear_logprobs import Bend, Product, linear_logprobs
from nat_finetune.errors import ConfigError, DataError


@dataclass(frozen=True, slots=True)
class TokenScores:
    """What a policy thinks of the selected tokens; 0 everywhere else."""

    logprobs_B_T: Tensor
    """Nats, <= 0, with gradient."""
    entropy_B_T: Tensor
    """Entropy in nats of the distribution that each token was drawn from; a metric, without gradient."""


def token_logprobs(logits_B_T_V: Tensor, token_ids_B_T: Tensor, *, temperature: float) -> Tensor:
    """Log-probability (nats) of every token given those before it, `[B, T]`, float32 or wider.

    Simple and hungry (a second `[B, T, V]` tensor); training uses `selected_logprobs`. Raises ConfigError when the
    temperature is not above 0.

    Two tokens, logits 0 and ln 3 for what comes second, so that token 1 has probability 3/4:

    >>> logits = torch.tensor([[[1.0, 3.0], [9.0, 9.0]]]).log()
    >>> token_logprobs(logits, torch.tensor([[0, 1]]), temperature=1.0).exp()
    tensor([[1.0000, 0.7500]])
    """
    scaled_B_S_V = _scaled(logits_B_T_V[:, :-1], temperature=temperature, softcap=None, logit_scale=1.0)
    logprobs_B_S = _gather_logprobs(scaled_B_S_V, token_ids_B_T[:, 1:])
    return torch.nn.functional.pad(logprobs_B_S, (1, 0))


def entropy(logits_V: Tensor, *, temperature: float) -> Tensor:
    """Entropy (nats) over the last axis of any logits, float32 or wider.

    >>> round(entropy(torch.zeros(8), temperature=0.7).item(), 4)  # ln 8
    2.0794
    """
    return _entropy(_scaled(logits_V, temperature=temperature, softcap=None, logit_scale=1.0))


def selected_logprobs(
    hidden_B_T_D: Tensor,
    lm_head: Callable[[Tensor], Tensor],
    token_ids_B_T: Tensor,
    selected_B_T: Tensor,
    *,
    temperature: float,
    chunk_tokens: int,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    places_B_T: Tensor | None = None,
    product: Product = torch.nn.functional.linear,
) -> TokenScores:
    """Score only the selected tokens, from the last hidden states, without ever holding logits of more than a chunk.

    `lm_head` maps `[N, D]` to `[N, V]` (the model's output embedding; a callable, so that an adapter on it is honoured).
    `selected_B_T` is the loss mask, aligned with the tokens. Peak memory is `chunk_tokens * V` logits, whatever T is: a plain
    linear layer is read in tiles of the vocabulary (see `linear_logprobs`; `product` computes its products), of anything else
    logits are recomputed chunk by chunk in the backward pass. `logit_scale` multiplies the logits, then
    `softcap` bends them (`softcap * tanh(logits / softcap)`), then the temperature divides: the order in which models
    apply their own. Rows that begin alike can share hidden states: `places_B_T` says where that of each token stands in
    the flattened `hidden`; without it each row reads its own. Hidden states behind the last selected token are not
    needed, so `hidden` may be shorter. Raises DataError when a first position is selected, ConfigError for impossible
    numbers.

    >>> hidden = torch.tensor([[[1.0, 3.0], [9.0, 9.0]]]).log()
    >>> scores = selected_logprobs(hidden, torch.nn.Identity(), torch.tensor([[0, 1]]), torch.tensor([[0, 1]]),
    ...                            temperature=1.0, chunk_tokens=512)
    >>> scores.logprobs_B_T.exp()
    tensor([[1.0000, 0.7500]])
    """
    if chunk_tokens < 1:
        raise ConfigError(f"chunk_tokens must be at least 1, not {chunk_tokens}")
    selected_B_T = selected_B_T.bool()
    if bool(selected_B_T[:, 0].any()):
        row = int(selected_B_T[:, 0].nonzero()[0])
        raise DataError(f"row {row}: the first token is selected, but nothing predicts it; start the mask after the prompt")
    row_N, before_N = selected_B_T[:, 1:].nonzero(as_tuple=True)

    _check(temperature=temperature, softcap=softcap)
    hidden_N_D, ids_N = _gather_hidden(hidden_B_T_D, row_N, before_N, places_B_T), token_ids_B_T[row_N, before_N + 1]
    if type(lm_head) is torch.nn.Linear:
        logprobs_N, entropy_N = linear_logprobs(
            hidden_N_D,
            lm_head.weight,
            lm_head.bias,
            ids_N,
            bend=Bend(logit_scale, softcap, temperature),
            tile_values=chunk_tokens * lm_head.out_features,
            product=product,
        )
    else:
        bend = partial(_scaled, temperature=temperature, softcap=softcap, logit_scale=logit_scale)
        logprobs_N, entropy_N = _in_chunks(hidden_N_D, ids_N, lm_head, bend, chunk_tokens)
    empty_B_T = torch.zeros(token_ids_B_T.shape, dtype=logprobs_N.dtype, device=logprobs_N.device)
    place = (row_N, before_N + 1)
    return TokenScores(
        logprobs_B_T=empty_B_T.index_put(place, logprobs_N),
        entropy_B_T=empty_B_T.index_put(place, entropy_N),
    )


def _in_chunks(
    hidden_N_D: Tensor,
    ids_N: Tensor,
    lm_head: Callable[[Tensor], Tensor],
    bend: Callable[[Tensor], Tensor],
    chunk_tokens: int,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies of an output layer of which nothing is known."""

    def score(hidden_C_D: Tensor, ids_C: Tensor) -> tuple[Tensor, Tensor]:
        scaled_C_V = bend(lm_head(hidden_C_D))
        logprobs_C = _gather_logprobs(scaled_C_V, ids_C)
        with torch.no_grad():
            return logprobs_C, _entropy(scaled_C_V)

    chunks = [
        checkpoint(score, hidden_C_D, ids_C, use_reentrant=False, preserve_rng_state=False)
        for hidden_C_D, ids_C in zip(torch.split(hidden_N_D, chunk_tokens), torch.split(ids_N, chunk_tokens), strict=True)
    ]
    logprobs_N, entropy_N = (torch.cat(parts) for parts in zip(*chunks, strict=True))
    return logprobs_N, entropy_N


def _gather_hidden(hidden_B_T_D: Tensor, row_N: Tensor, before_N: Tensor, places_B_T: Tensor | None) -> Tensor:
    # index_select, because its backward adds up shared rows in a fixed order on the CPU; that of [row, before] does not.
    places_N = row_N * hidden_B_T_D.shape[1] + before_N if places_B_T is None else places_B_T[row_N, before_N]
    return hidden_B_T_D.flatten(0, 1).index_select(0, places_N)


def _check(*, temperature: float, softcap: float | None) -> None:
    if not temperature > 0:
        raise ConfigError(f"temperature must be above 0 to train (greedy samples have no gradient), not {temperature}")
    if softcap is not None and not softcap > 0:
        raise ConfigError(f"softcap must be above 0, or None for no cap, not {softcap}")


def _scaled(logits_V: Tensor, *, temperature: float, softcap: float | None, logit_scale: float) -> Tensor:
    """Logits as the sampler saw them, at least float32 (a bf16 logsumexp is off by 0.01 nats)."""
    _check(temperature=temperature, softcap=softcap)
    logits_V = logits_V.to(torch.promote_types(logits_V.dtype, torch.float32)) * logit_scale
    if softcap is not None:
        logits_V = softcap * torch.tanh(logits_V / softcap)
    return logits_V / temperature


def _gather_logprobs(scaled_V: Tensor, ids: Tensor) -> Tensor:
    return scaled_V.gather(-1, ids.unsqueeze(-1)).squeeze(-1) - scaled_V.logsumexp(-1)


def _entropy(scaled_V: Tensor) -> Tensor:
    logprobs_V = scaled_V.log_softmax(-1)
    # A forbidden token (-inf) adds nothing: p ln p → 0, where 0 * -inf would be NaN.
    return -(logprobs_V.exp() * logprobs_V.clamp(min=torch.finfo(logprobs_V.dtype).min)).sum(-1)
