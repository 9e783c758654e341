"""The matrix product for float32 on this CPU.

On x86 CPUs, torch's float32 product is MKL's, which leaves AVX-512 unused on processors that are not Intel's; oneDNN's, which
torch ships too, does not (measured on such a processor: 110 and 250 GFLOP/s on one thread). Which one is used depends on the
build and the kind of processor only, never on a measurement: the same run twice gives the same bits.
"""

from __future__ import annotations

import functools
import logging
import platform

import torch
from torch import Tensor
from torch.nn import functional

from nat_finetune.algorithms.linear_logprobs import Product
from nat_finetune.local.onednn import onednn_added, onednn_linear

_log = logging.getLogger(__name__)

_TOLERANCE = 1e-4
"""Largest difference of two products over 64 standard normal terms; float32 gives 1e-5."""


@functools.cache
def fast_product() -> Product:
    """The product for float32 matrices on this CPU: oneDNN's on x86 if this torch has it and it is right, else torch's own."""
    if platform.machine().lower() not in ("x86_64", "amd64") or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return functional.linear
    try:
        difference = _disagreement(onednn_linear)
    except (RuntimeError, AttributeError) as error:  # an operator of torch's compiler: another build may lack it
        _log.warning("linear layers stay with torch's own product: oneDNN's can't be called (%s)", str(error).splitlines()[0])
        return functional.linear
    if not difference <= _TOLERANCE:
        _log.warning("linear layers stay with torch's own product: oneDNN's differs by %.2g", difference)
        return functional.linear
    return onednn_linear


def added_product(x_N_K: Tensor, weight: Tensor, bias: Tensor | None, other_N_M: Tensor) -> Tensor:
    """`x weightᵀ + bias + other`, `[N, M]`, by the fast product."""
    if fast_product() is onednn_linear:
        return onednn_added(x_N_K, weight, bias, other_N_M)
    return functional.linear(x_N_K, weight, bias).add_(other_N_M)


def fits(weight: Tensor) -> bool:
    """Whether `fast_product` is made for this weight."""
    return weight.dtype == torch.float32 and weight.device.type == "cpu"


def _disagreement(product: Product) -> float:
    """From torch's own, with weights as they are and with views in place of matrices, as the backward pass has them."""
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(size, generator=generator) for size in ((3, 5, 64), (48, 64), (48,)))
    grad, other = x.reshape(-1, 64), weight[:15, :48]
    pairs = (
        (product(x, weight, bias), functional.linear(x, weight, bias)),
        (product(grad.t(), grad.t(), None), grad.t() @ grad),
        (onednn_added(grad, weight, bias, other), functional.linear(grad, weight, bias) + other),
    )
    return max(float((found - expected).abs().max()) for found, expected in pairs)
