"""The draw follows the distribution that it says it follows, and its random numbers are SplitMix64's."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import TopKLogitsWarper, TopPLogitsWarper

from nat_finetune.local.sampling import Draw, inverse_cdf, sample, truncated, uniform


def draw(rows: int, temperature: float = 1.0, seed: int = 0, step: int = 0, **more) -> Draw:
    return Draw(
        temperature_B=torch.full((rows,), temperature),
        seed_B=torch.full((rows,), seed, dtype=torch.int64),
        step_B=torch.full((rows,), step, dtype=torch.int64),
        **more,
    )


def test_uniform_numbers_are_splitmix64():
    # First outputs for the seed 1234567, as published with the reference implementation.
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    found = uniform(torch.full((5,), 1234567), torch.arange(5))
    assert found.tolist() == [(number >> 11) * 2.0**-53 for number in published]


def test_streams_of_neighbouring_seeds_are_unlike():
    numbers = uniform(torch.arange(2000), torch.zeros(2000, dtype=torch.int64))
    assert abs(float(numbers.mean()) - 0.5) < 0.02
    assert abs(float(torch.corrcoef(torch.stack([numbers[:-1], numbers[1:]]))[0, 1])) < 0.06


@pytest.mark.parametrize("vocabulary", [7, 256, 1000])
def test_draws_follow_the_softmax_at_the_temperature(vocabulary):
    logits = torch.randn(vocabulary, generator=torch.Generator().manual_seed(1)) * 2
    count, temperature = 40_000, 0.7
    drawing = Draw(torch.full((count,), temperature), torch.arange(count), torch.zeros(count, dtype=torch.int64))
    tokens, logprobs = sample(logits.expand(count, -1), drawing)
    expected = (logits / temperature).softmax(-1)
    assert torch.allclose(logprobs, expected.log()[tokens], atol=1e-5)
    seen = torch.bincount(tokens, minlength=vocabulary)
    enough = expected * count > 5
    chi_square = (((seen - expected * count) ** 2) / (expected * count))[enough].sum()
    freedom = int(enough.sum()) - 1
    assert float(chi_square) < freedom + 5 * math.sqrt(2 * freedom)


def test_inverse_cdf_at_the_edges_returns_only_what_has_probability():
    probs = torch.zeros(3, 600)
    probs[:, 300], probs[:, 512] = 0.25, 0.75
    assert inverse_cdf(probs, torch.tensor([0.0, 0.25 - 1e-12, 1 - 2.0**-53], dtype=torch.float64)).tolist() == [300, 300, 512]


def test_greedy_takes_the_most_probable_and_reports_temperature_one():
    logits = torch.randn(4, 50)
    tokens, logprobs = sample(logits, draw(4, temperature=0.0))
    assert tokens.tolist() == logits.argmax(-1).tolist()
    assert torch.allclose(logprobs, logits.log_softmax(-1).max(-1).values, atol=1e-6)


def test_greedy_and_sampled_rows_share_a_batch():
    logits = torch.randn(2, 50)
    mixed = Draw(torch.tensor([0.0, 1.0]), torch.tensor([5, 5]), torch.tensor([0, 0]))
    tokens, _ = sample(logits, mixed)
    alone, _ = sample(logits[1:], draw(1, seed=5))
    assert tokens.tolist() == [int(logits[0].argmax()), int(alone[0])]


@pytest.mark.parametrize(("top_k", "top_p"), [(5, None), (None, 0.6), (0, 0.95), (40, 0.5), (1, None), (None, 1e-9)])
@pytest.mark.parametrize("vocabulary", [64, 3000])
def test_top_k_and_top_p_keep_what_transformers_keeps(top_k, top_p, vocabulary):
    logits = torch.randn(6, vocabulary, generator=torch.Generator().manual_seed(2))
    expected = logits
    if top_k:
        expected = TopKLogitsWarper(top_k)(None, expected)
    if top_p is not None:
        expected = TopPLogitsWarper(top_p)(None, expected)
    kept = truncated(
        logits.softmax(-1),
        torch.full((6,), top_k) if top_k is not None else None,
        torch.full((6,), top_p) if top_p is not None else None,
    )
    assert ((kept > 0) == torch.isfinite(expected)).all()


def test_a_row_without_truncation_is_untouched_by_its_neighbours():
    probs = torch.randn(2, 3000).softmax(-1)
    kept = truncated(probs, torch.tensor([0, 3]), torch.tensor([1.0, 0.5]))
    assert torch.equal(kept[0], probs[0])
    assert int((kept[1] > 0).sum()) <= 3


def test_truncation_changes_the_draw_and_not_the_logprob():
    logits = torch.randn(500, 20)
    numbers = Draw(torch.ones(500), torch.arange(500), torch.zeros(500, dtype=torch.int64), top_k_B=torch.full((500,), 2))
    tokens, logprobs = sample(logits, numbers)
    assert (logits.topk(2).indices == tokens[:, None]).any(-1).all()
    assert torch.allclose(logprobs, logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0], atol=1e-6)
