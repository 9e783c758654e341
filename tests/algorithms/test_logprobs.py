"""The one shift by one, temperature, and that scoring in chunks is the same as scoring at once."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

from nat_finetune.algorithms.logprobs import entropy, selected_logprobs, token_logprobs
from nat_finetune.errors import ConfigError, DataError

B, T, D, V = 3, 6, 5, 11


def problem(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(B, T, D, generator=generator, dtype=dtype)
    weight = torch.randn(V, D, generator=generator, dtype=dtype)
    ids = torch.randint(0, V, (B, T), generator=generator)
    selected = torch.tensor([[0, 0, 1, 1, 1, 0], [0, 1, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0]])
    return hidden, weight, ids, selected


def test_a_token_is_scored_by_the_logits_before_it() -> None:
    ids = torch.tensor([[3, 1, 4]])
    logits = torch.full((1, 3, V), -50.0)
    logits[0, 0, 1] = logits[0, 1, 4] = 50.0  # what each position expects next
    logits[0, 2, 0] = 50.0  # after the last token: nothing to score
    assert token_logprobs(logits, ids, temperature=1.0).tolist() == [[0.0, 0.0, 0.0]]
    assert token_logprobs(logits, torch.tensor([[3, 4, 1]]), temperature=1.0)[0, 1] < -90


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_logprobs_are_a_distribution_at_the_temperature(temperature: float) -> None:
    hidden, weight, _, _ = problem()
    logits = linear(hidden, weight)
    every = torch.stack([token_logprobs(logits, torch.full((B, T), token), temperature=temperature) for token in range(V)])
    torch.testing.assert_close(every.exp().sum(0)[:, 1:], torch.ones(B, T - 1, dtype=torch.float64))
    torch.testing.assert_close(every[:, :, 1:].permute(1, 2, 0), (logits / temperature).log_softmax(-1)[:, :-1])


@pytest.mark.parametrize("chunk", [1, 2, 3, 512])
def test_chunks_equal_the_whole(chunk: int) -> None:
    hidden, weight, ids, selected = problem()
    scores = selected_logprobs(hidden, partial(linear, weight=weight), ids, selected, temperature=0.7, chunk_tokens=chunk)
    logits = linear(hidden, weight)
    expected = token_logprobs(logits, ids, temperature=0.7) * selected
    torch.testing.assert_close(scores.logprobs_B_T, expected)
    entropies = torch.nn.functional.pad(entropy(logits, temperature=0.7)[:, :-1], (1, 0)) * selected
    torch.testing.assert_close(scores.entropy_B_T, entropies)
    assert not scores.entropy_B_T.requires_grad


@pytest.mark.parametrize("chunk", [2, 512])
def test_gradients_of_hidden_states_and_head_equal_the_whole(chunk: int) -> None:
    hidden, weight, ids, selected = problem()
    hidden.requires_grad_()
    weight.requires_grad_()
    coefficients = torch.arange(B * T, dtype=torch.float64).view(B, T)
    scores = selected_logprobs(hidden, partial(linear, weight=weight), ids, selected, temperature=0.7, chunk_tokens=chunk)
    ours = torch.autograd.grad((coefficients * scores.logprobs_B_T).sum(), (hidden, weight))
    whole = token_logprobs(linear(hidden, weight), ids, temperature=0.7)
    theirs = torch.autograd.grad((coefficients * selected * whole).sum(), (hidden, weight))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("softcap", [None, 3.0])
def test_gradcheck(softcap: float | None) -> None:
    hidden, weight, ids, selected = problem()

    def score(hidden: Tensor, weight: Tensor) -> Tensor:
        return selected_logprobs(
            hidden,
            partial(linear, weight=weight),
            ids,
            selected,
            temperature=0.7,
            chunk_tokens=2,
            softcap=softcap,
            logit_scale=0.5,
        ).logprobs_B_T

    assert torch.autograd.gradcheck(score, (hidden.requires_grad_(), weight.requires_grad_()))


def test_scale_then_softcap_then_temperature() -> None:
    hidden, weight, ids, selected = problem()
    scores = selected_logprobs(
        hidden,
        partial(linear, weight=weight),
        ids,
        selected,
        temperature=0.7,
        chunk_tokens=4,
        softcap=2.0,
        logit_scale=0.5,
    )
    logits = 2.0 * torch.tanh(0.5 * linear(hidden, weight) / 2.0)
    torch.testing.assert_close(scores.logprobs_B_T, token_logprobs(logits, ids, temperature=0.7) * selected)


def test_no_more_logits_than_a_chunk_are_ever_made() -> None:
    hidden, weight, ids, selected = problem()
    rows_seen: list[int] = []

    def head(hidden_N_D: Tensor) -> Tensor:
        rows_seen.append(len(hidden_N_D))
        return linear(hidden_N_D, weight)

    scores = selected_logprobs(hidden.requires_grad_(), head, ids, selected, temperature=1.0, chunk_tokens=2)
    assert rows_seen == [2, 2, 1]  # 5 of 18 positions are selected
    scores.logprobs_B_T.sum().backward()
    assert sorted(rows_seen[3:]) == [1, 2, 2]  # computed again, not kept


def test_unselected_positions_have_exactly_zero_gradient() -> None:
    hidden, weight, ids, selected = problem()
    hidden[2] = math.nan  # a row in which nothing is selected
    hidden.requires_grad_()
    scores = selected_logprobs(hidden, partial(linear, weight=weight), ids, selected, temperature=1.0, chunk_tokens=2)
    scores.logprobs_B_T.sum().backward()
    assert hidden.grad is not None
    predicts = torch.nn.functional.pad(selected[:, 1:], (0, 1)).bool()
    assert not hidden.grad[~predicts].any()
    assert hidden.grad[predicts].abs().sum(-1).min() > 0


def test_nothing_selected_is_all_zero_and_can_be_differentiated() -> None:
    hidden, weight, ids, selected = problem()
    hidden.requires_grad_()
    scores = selected_logprobs(hidden, partial(linear, weight=weight), ids, 0 * selected, temperature=1.0, chunk_tokens=2)
    assert not scores.logprobs_B_T.any()
    scores.logprobs_B_T.sum().backward()
    assert hidden.grad is not None
    assert not hidden.grad.any()


def test_half_precision_is_scored_in_float32() -> None:
    hidden, weight, ids, selected = problem(torch.float32)
    half = selected_logprobs(
        hidden.bfloat16(), partial(linear, weight=weight.bfloat16()), ids, selected, temperature=1.0, chunk_tokens=4
    )
    assert half.logprobs_B_T.dtype == torch.float32
    logits = linear(hidden.bfloat16(), weight.bfloat16()).float()
    torch.testing.assert_close(half.logprobs_B_T, token_logprobs(logits, ids, temperature=1.0) * selected)


def test_entropy_of_forbidden_tokens_is_finite() -> None:
    logits = torch.tensor([0.0, 0.0, -math.inf])
    assert entropy(logits, temperature=1.0).item() == pytest.approx(math.log(2))


def test_refusals() -> None:
    hidden, weight, ids, selected = problem()
    head = partial(linear, weight=weight)
    first = selected.clone()
    first[1, 0] = 1
    with pytest.raises(DataError, match="row 1: the first token is selected"):
        selected_logprobs(hidden, head, ids, first, temperature=1.0, chunk_tokens=2)
    for temperature in (0.0, -1.0, math.nan):
        with pytest.raises(ConfigError, match="temperature"):
            token_logprobs(linear(hidden, weight), ids, temperature=temperature)
    with pytest.raises(ConfigError, match="chunk_tokens"):
        selected_logprobs(hidden, head, ids, selected, temperature=1.0, chunk_tokens=0)
    with pytest.raises(ConfigError, match="softcap"):
        selected_logprobs(hidden, head, ids, selected, temperature=1.0, chunk_tokens=2, softcap=0.0)
