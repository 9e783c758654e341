"""oneDNN's product with rows filled up: the same numbers, and few shapes for it to compile."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional

from nat_finetune.local.onednn import ROWS, filled, onednn_linear
from nat_finetune.local.products import fast_product

pytestmark = pytest.mark.skipif(fast_product() is functional.linear, reason="no oneDNN product here")


def randn(*size):
    return torch.randn(*size, generator=torch.Generator().manual_seed(sum(size)))


@pytest.mark.parametrize("shape", [(1, 64), (17, 64), (2, 37, 64), (65, 64), (701, 64)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_the_product_is_torchs(shape, with_bias):
    x, weight, bias = randn(*shape), randn(48, 64), randn(48) if with_bias else None
    found = onednn_linear(x, weight, bias)
    torch.testing.assert_close(found, functional.linear(x, weight, bias), atol=1e-4, rtol=1e-5)
    assert found.is_contiguous()


@pytest.mark.parametrize("tokens", [5, 65, 333, 512])
def test_so_it_is_where_tokens_are_summed(tokens):
    """As a weight's gradient: views of transposed matrices, as many terms as there are tokens."""
    grad, x = randn(tokens, 48), randn(tokens, 24)
    torch.testing.assert_close(onednn_linear(grad.t(), x.t(), None), grad.t() @ x, atol=1e-3, rtol=1e-4)


def test_few_numbers_of_rows_are_asked_for():
    asked = {filled(count) for count in range(1, 4097)}
    assert all(count <= filled(count) for count in range(1, 4097))
    assert len([count for count in asked if count <= 1024]) <= 56
    assert max(filled(count) / count for count in range(800, 4097)) < 1.04


def test_rows_that_fit_are_not_copied(monkeypatch):
    monkeypatch.setattr("nat_finetune.local.onednn.functional.pad", lambda *_: pytest.fail("copied"))
    for count in (ROWS, 3 * ROWS, 33 * ROWS):
        x, grad = randn(1, count, 48), randn(count, 48)
        onednn_linear(x, randn(24, 48), None)
        onednn_linear(grad.t(), x[0].t(), None)


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_memory_does_not_grow_with_the_numbers_of_rows():
    weight = randn(256, 256)
    for count in range(1, 513, 32):
        onednn_linear(randn(count, 256), weight, None)
    before = resident_mib()
    for count in range(70, 470):
        onednn_linear(randn(count, 256), weight, None)
    assert resident_mib() - before < 40  # a shape for each would take 200 and more
