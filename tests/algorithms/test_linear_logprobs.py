"""Logits in tiles of the vocabulary against whole logits: values, entropies, gradients."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from nat_finetune.algorithms import linear_logprobs as module
from nat_finetune.algorithms.linear_logprobs import Bend, linear_logprobs
from nat_finetune.algorithms.logprobs import selected_logprobs

N, D, V = 7, 5, 150
TILE = 64 * N  # 64 of the vocabulary's tokens at a time


def problem(dtype: torch.dtype = torch.float64, spread: float = 3.0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    hidden, weight, bias = (torch.randn(size, generator=generator, dtype=dtype) * spread for size in ((N, D), (V, D), (V,)))
    ids = torch.tensor([0, 63, 64, 127, 128, 149, 149])  # edges of tiles
    return hidden, weight, bias, ids


def whole(hidden: Tensor, weight: Tensor, bias: Tensor | None, ids: Tensor, bend: Bend) -> tuple[Tensor, Tensor]:
    logits = functional.linear(hidden, weight, bias) * bend.scale
    if bend.softcap is not None:
        logits = bend.softcap * (logits / bend.softcap).tanh()
    logprobs = (logits / bend.temperature).log_softmax(-1)
    return logprobs.gather(1, ids[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)


@pytest.mark.parametrize("bend", [Bend(), Bend(0.5, None, 0.7), Bend(0.5, 3.0, 0.7)], ids=["plain", "scaled", "capped"])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("rows", [3, 1024])
def test_tiles_equal_the_whole(bend, with_bias, rows, monkeypatch):
    monkeypatch.setattr(module, "_ROWS", rows)
    hidden, weight, bias, ids = problem()
    given = [value.requires_grad_() for value in ((hidden, weight, bias) if with_bias else (hidden, weight))]
    coefficients = torch.arange(1.0, N + 1, dtype=torch.float64)
    results = []
    for found in (
        linear_logprobs(hidden, weight, bias if with_bias else None, ids, bend=bend, tile_values=TILE),
        whole(hidden, weight, bias if with_bias else None, ids, bend),
    ):
        results.append((*(value.detach() for value in found), *torch.autograd.grad((coefficients * found[0]).sum(), given)))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_gradients_are_those_of_finite_differences():
    hidden, weight, bias, ids = problem(spread=1.0)
    bend = Bend(0.5, 3.0, 0.7)

    def score(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return linear_logprobs(hidden, weight, bias, ids, bend=bend, tile_values=TILE)[0]

    assert torch.autograd.gradcheck(score, tuple(value.requires_grad_() for value in (hidden, weight, bias)))


def test_large_logits_neither_overflow_nor_vanish():
    hidden, weight, bias, ids = problem(torch.float32, spread=30.0)
    found = linear_logprobs(hidden, weight, bias, ids, bend=Bend(), tile_values=TILE)
    expected = whole(hidden.double(), weight.double(), bias.double(), ids, Bend())
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, atol=2e-3, rtol=1e-5)


def test_a_linear_head_is_read_in_tiles_and_no_more_than_asked_for():
    hidden, weight, _, ids = problem(torch.float32)
    head = torch.nn.Linear(D, V, bias=False)
    head.weight.data.copy_(weight)
    head.requires_grad_(False)
    seen = []

    def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        seen.append(x.shape[0] * weight.shape[0])
        return functional.linear(x, weight, bias)

    selected = torch.tensor([[0] + [1] * (N - 1)])
    scores = selected_logprobs(
        hidden[None].requires_grad_(), head, ids[None], selected, temperature=0.7, chunk_tokens=3, product=product
    )
    passes = len(seen)
    scores.logprobs_B_T.sum().backward()
    assert len(seen) == passes  # a frozen head costs nothing in the backward pass
    assert passes == 3 * 2  # tiles of 64, 64 and 22, forward and gradient
    assert max(seen) <= 3 * V
    expected, _ = whole(hidden[:-1], weight, None, ids[1:], Bend(1.0, None, 0.7))
    torch.testing.assert_close(scores.logprobs_B_T[0, 1:], expected, atol=1e-5, rtol=1e-5)
