"""oneDNN's product of a linear layer, asked for few different shapes.

For each shape oneDNN compiles code, half a megabyte and more, of which it keeps the last thousand: as many as a run has
numbers of tokens. Rows are therefore filled up to a multiple, and so is the dimension that is summed where it is a number of
tokens too (a weight's gradient): a few dozen shapes, at most 4 % more work above 800 rows.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

_STEPS = ((16, 1), (64, 8))
"""Up to so many rows, to a multiple of so many."""
ROWS = 32
"""Above; so many rows, or a multiple, are never copied to be filled up."""


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None, *, packed: bool = False) -> Tensor:
    """`x weightᵀ + bias`, `[..., N]`; `packed`: the weight is in oneDNN's own layout.

    Raises:
        AttributeError, RuntimeError: this build of torch lacks the operator.
    """
    inner = x.shape[-1]
    rows = x.numel() // inner
    more_rows = filled(rows) - rows
    more_inner = 0 if packed or inner <= _STEPS[-1][0] or inner % 16 == 0 else filled(inner) - inner
    if more_inner:
        weight = functional.pad(weight, (0, more_inner))
    if not more_rows and not more_inner:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return out
    padded = functional.pad(x.reshape(rows, inner), (0, more_inner, 0, more_rows))
    out = torch.ops.mkldnn._linear_pointwise(padded, weight, bias, "none", [], "")
    return out[:rows].view(*x.shape[:-1], out.shape[-1])


def onednn_added(x: Tensor, weight: Tensor, bias: Tensor | None, other: Tensor) -> Tensor:
    """`x weightᵀ + bias + other`, `[N, M]`: added while the product is still at hand.

    Raises:
        AttributeError, RuntimeError: this build of torch lacks the operator.
    """
    rows, inner = x.shape
    more_rows = filled(rows) - rows
    if more_rows:
        x, other = (functional.pad(value, (0, 0, 0, more_rows)) for value in (x, other))
    if inner > _STEPS[-1][0] and inner % 16:  # a number of tokens, or of ranks side by side
        x, weight = (functional.pad(value, (0, filled(inner) - inner)) for value in (x, weight))
    out: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, other, weight, bias, "add")
    return out[:rows]


def filled(count: int) -> int:
    """The number of rows that is computed where so many are wanted."""
    step = next((step for limit, step in _STEPS if count <= limit), ROWS)
    return -(-count // step) * step
