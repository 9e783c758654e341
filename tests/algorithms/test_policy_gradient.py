"""Laws of the policy-gradient losses: where clips bite, what ratio 1 means, masks, padding, accumulation."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from nat_finetune.algorithms.importance import importance_correction
from nat_finetune.algorithms.kl import token_kl
from nat_finetune.algorithms.policy_gradient import (
    RATIOS,
    SURROGATES,
    Clip,
    LossOutput,
    combine,
    policy_gradient_loss,
)
from nat_finetune.algorithms.reduce import REDUCTIONS, StepCounts, tokens_by_rollout
from nat_finetune.errors import ConfigError

CLIP = Clip(low=0.2, high=0.28)
CLIPS = {"clipped": CLIP, "cispo": CLIP, "reinforce": None}


def batch(rows: int = 8, length: int = 7, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def noise(scale: float) -> Tensor:
        return scale * torch.randn(rows, length, generator=generator, dtype=torch.float64)

    old = -noise(1.0).abs() - 0.05
    lengths = torch.randint(1, length, (rows,), generator=generator)
    mask = (torch.arange(length) >= length - lengths.unsqueeze(-1)).double()
    advantages = torch.randn(rows, 1, generator=generator, dtype=torch.float64).expand(rows, length)
    return {
        "logprobs": old + noise(0.3),
        "old": old,
        "reference": old + noise(0.2),
        "sampler": old + noise(0.1),
        "advantages": advantages,
        "mask": mask,
        "rollouts": torch.arange(rows) // 2,
    }


def counts_of(data: dict[str, Tensor]) -> StepCounts:
    rows = len(data["mask"])
    return StepCounts(tokens=data["mask"].sum().item(), sequences=rows, rollouts=(rows + 1) // 2, max_length=16)


def loss_of(
    data: dict[str, Tensor], counts: StepCounts, *, reduction: str = "token_mean", surrogate: str = "clipped", **options: Any
) -> LossOutput:
    tokens_B = data.get("rollout_tokens", data["mask"].sum(-1))
    kl = token_kl(data["logprobs"], data["reference"], data["mask"], estimator="k3", gradient="score_function")
    correction = importance_correction(data["old"], data["sampler"], data["mask"], mode="truncate_tokens", low=0.0, high=1.1)
    return policy_gradient_loss(
        data["logprobs"],
        data["old"],
        data["advantages"],
        data["mask"],
        REDUCTIONS[reduction](data["mask"], tokens_B, counts),
        **{"ratio": "token", "clip": CLIPS[surrogate]} | options,
        surrogate=surrogate,
        total_tokens=counts.tokens,
        correction_B_T=correction,
        kl_B_T=kl,
        kl_coefficient=0.1,
    )


def gradient(data: dict[str, Tensor], counts: StepCounts, **options: Any) -> Tensor:
    logprobs = data["logprobs"].clone().requires_grad_()
    loss_of(data | {"logprobs": logprobs}, counts, **options).loss.backward()
    assert logprobs.grad is not None
    return logprobs.grad


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("surrogate", SURROGATES)
def test_at_ratio_one_every_surrogate_has_the_gradient_of_reinforce(surrogate: str, ratio: str) -> None:
    data = batch()
    data["old"] = data["logprobs"]
    data["sampler"] = data["old"]
    ours = gradient(data, counts_of(data), surrogate=surrogate, ratio=ratio)
    torch.testing.assert_close(ours, gradient(data, counts_of(data), surrogate="reinforce"))


def test_a_sequence_ratio_has_no_token_gradient_of_its_own() -> None:
    data = batch()
    data["reference"] = data["logprobs"]
    data["sampler"] = data["old"]
    ours = gradient(data, counts_of(data), ratio="sequence", clip=Clip(0.9, 9.0))
    for row, mask in zip(ours, data["mask"].bool(), strict=True):
        assert row[mask].std(correction=0) < 1e-12


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("ratio", RATIOS)
def test_masked_positions_have_no_gradient_whatever_stands_there(reduction: str, surrogate: str, ratio: str) -> None:
    data = batch()
    options = {"reduction": reduction, "surrogate": surrogate, "ratio": ratio}
    clean = gradient(data, counts_of(data), **options)
    trained = data["mask"].bool()
    assert not clean[~trained].any()
    for junk in (math.nan, -math.inf, 1e30):
        junked = {
            name: torch.where(trained, data[name], junk) for name in ("logprobs", "old", "reference", "sampler", "advantages")
        }
        assert torch.equal(gradient(data | junked, counts_of(data), **options), clean)
        output = loss_of(data | junked, counts_of(data), **options)
        assert all(value.isfinite() for value in (output.loss, *output.sums.values(), *output.maxima.values()))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("ratio", RATIOS)
def test_a_correction_of_nan_at_a_masked_position_is_harmless(reduction: str, ratio: str) -> None:
    logprobs = torch.tensor([[-1.0, -1.0]], requires_grad=True)
    mask = torch.tensor([[0, 1]])
    policy_gradient_loss(
        logprobs,
        logprobs.detach(),
        torch.ones(1, 2),
        mask,
        REDUCTIONS[reduction](mask, mask.sum(-1), StepCounts(tokens=1, sequences=1, rollouts=1, max_length=1)),
        ratio=ratio,
        surrogate="clipped",
        clip=CLIP,
        total_tokens=1,
        correction_B_T=torch.tensor([[math.nan, 2.0]]),
    ).loss.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [[0.0, -2.0]]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("ratio", RATIOS)
def test_padding_changes_nothing(reduction: str, ratio: str) -> None:
    data = batch()
    padded = {name: torch.nn.functional.pad(data[name], (0, 5)) for name in data if name != "rollouts"}
    short = gradient(data, counts_of(data), reduction=reduction, ratio=ratio)
    long = gradient(padded, counts_of(padded), reduction=reduction, ratio=ratio)
    torch.testing.assert_close(long[:, :7], short)
    assert not long[:, 7:].any()


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("surrogate", SURROGATES)
def test_one_batch_of_eight_is_eight_of_one(reduction: str, surrogate: str) -> None:
    data = batch()
    data["rollout_tokens"] = tokens_by_rollout(data["mask"], data["rollouts"])
    counts = counts_of(data)
    options = {"reduction": reduction, "surrogate": surrogate}
    whole = loss_of(data, counts, **options)
    rows = [{name: tensor[row : row + 1] for name, tensor in data.items()} for row in range(8)]
    parts = combine([loss_of(row, counts, **options) for row in rows])
    torch.testing.assert_close(parts.loss, whole.loss)
    for name in whole.sums:
        torch.testing.assert_close(parts.sums[name], whole.sums[name], msg=name)
    torch.testing.assert_close(parts.maxima["ratio_max"], whole.maxima["ratio_max"])
    pieces = torch.cat([gradient(row, counts, **options) for row in rows])
    torch.testing.assert_close(pieces, gradient(data, counts, **options))


def test_averaging_micro_batches_would_not_be_the_same() -> None:
    # The negative of the test above: with counts of each micro-batch alone the loss is another one.
    data = batch()
    rows = [{name: tensor[row : row + 1] for name, tensor in data.items()} for row in range(8)]
    wrong = torch.stack([loss_of(row, counts_of(row)).loss for row in rows]).mean()
    assert (wrong - loss_of(data, counts_of(data)).loss).abs() > 1e-3


@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("ratio", RATIOS)
def test_gradcheck(surrogate: str, ratio: str) -> None:
    data = batch(rows=3, length=4)
    # CISPO's weight and the KL's factor are constants by decree, so finite differences can't see through them.
    clip = None if surrogate == "reinforce" else Clip(low=0.0, high=0.0) if surrogate == "cispo" else CLIP

    def loss(logprobs: Tensor) -> Tensor:
        return policy_gradient_loss(
            logprobs,
            data["old"],
            data["advantages"],
            data["mask"],
            data["mask"] / 10,
            ratio=ratio,
            surrogate=surrogate,
            clip=clip,
            total_tokens=10,
        ).loss

    assert torch.autograd.gradcheck(loss, (data["logprobs"].clone().requires_grad_(),))


@pytest.mark.parametrize(
    ("ratio", "advantage", "clip", "gradient"),
    [
        (1.5, 1.0, Clip(0.2, 0.2), 0.0),  # already more likely than allowed: stop
        (1.5, 1.0, Clip(0.2, 0.6), -1.5),  # clip higher
        (1.5, -1.0, Clip(0.2, 0.2), 1.5),  # pessimism: bad and more likely, pull back at full strength
        (0.5, -1.0, Clip(0.2, 0.2), 0.0),
        (0.5, 1.0, Clip(0.2, 0.2), -0.5),
        (4.0, -1.0, Clip(0.2, 0.2), 4.0),
        (4.0, -1.0, Clip(0.2, 0.2, dual=3.0), 0.0),  # dual clip: one token can't own the step
        (2.0, -1.0, Clip(0.2, 0.2, dual=3.0), 2.0),
        (4.0, -1.0, Clip(0.2, 0.2, ratio_cap=2.0), 0.0),
        (4.0, 1.0, Clip(0.2, 9.0, dual=3.0), -4.0),  # dual clip is for negative advantages
    ],
)
def test_where_clips_bite(ratio: float, advantage: float, clip: Clip, gradient: float) -> None:
    logprobs = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    one = torch.ones(1, 1, dtype=torch.float64)
    policy_gradient_loss(
        logprobs, 0 * one, advantage * one, one, one, ratio="token", surrogate="clipped", clip=clip, total_tokens=1
    ).loss.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.item() == pytest.approx(gradient)


def test_cispo_never_silences_a_token() -> None:
    logprobs = torch.tensor([[math.log(50.0)]], dtype=torch.float64, requires_grad=True)
    one = torch.ones(1, 1, dtype=torch.float64)
    output = policy_gradient_loss(
        logprobs, 0 * one, one, one, one, ratio="token", surrogate="cispo", clip=Clip(1.0, 4.0), total_tokens=1
    )
    output.loss.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.item() == pytest.approx(-5.0)
    assert output.sums["clip_fraction"] == 1


def test_a_ratio_beyond_float_does_not_poison_a_flat_group() -> None:
    logprobs = torch.tensor([[0.0]], requires_grad=True)
    one = torch.ones(1, 1)
    output = policy_gradient_loss(
        logprobs, -200 * one, 0 * one, one, one, ratio="token", surrogate="clipped", clip=CLIP, total_tokens=1
    )
    output.loss.backward()
    assert output.loss.item() == 0
    assert logprobs.grad is not None
    assert logprobs.grad.item() == 0


@pytest.mark.parametrize(
    "numbers",
    [
        {"low": -0.1, "high": 0.2},
        {"low": 1.1, "high": 0.2},
        {"low": 0.2, "high": math.nan},
        {"low": 0.2, "high": -1},
        {"low": 0.2, "high": 0.2, "dual": 1.0},
        {"low": 0.2, "high": 0.2, "ratio_cap": 1.2},
    ],
)
def test_impossible_clips_are_refused(numbers: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Clip(**numbers)


@pytest.mark.parametrize(
    ("surrogate", "clip"),
    [("clipped", None), ("cispo", None), ("reinforce", CLIP), ("cispo", Clip(0.2, 0.2, dual=3.0))],
)
def test_a_knob_that_would_do_nothing_is_refused(surrogate: str, clip: Clip | None) -> None:
    data = batch()
    with pytest.raises(ConfigError):
        loss_of(data, counts_of(data), surrogate=surrogate, clip=clip)


def test_a_kl_without_its_coefficient_is_refused_and_the_reverse() -> None:
    data = batch()
    common: dict[str, Any] = {"ratio": "token", "surrogate": "clipped", "clip": CLIP, "total_tokens": 1}
    tensors = (data["logprobs"], data["old"], data["advantages"], data["mask"], data["mask"])
    with pytest.raises(ConfigError, match="ignores the KL"):
        policy_gradient_loss(*tensors, **common, kl_B_T=data["old"])
    with pytest.raises(ConfigError, match="needs a KL"):
        policy_gradient_loss(*tensors, **common, kl_coefficient=0.1)
