"""The soft penalty on answers that come close to the length limit (DAPO, arXiv:2503.14476 eq. 13)."""

from __future__ import annotations

from torch import Tensor

from nat_finetune.errors import ConfigError


def soft_overlong_penalty(lengths_B: Tensor, *, max_length: int, buffer: int, penalty: float) -> Tensor:
    """What to add to each reward, `[B]`, <= 0: nothing up to `max_length - buffer` tokens, then linear to `-penalty`.

    At `max_length` and beyond it is `-penalty` (NeMo RL lets it fall further). Lengths in tokens of the response.
    Raises ConfigError when the buffer is not within the limit or the penalty is negative.

    >>> import torch
    >>> soft_overlong_penalty(torch.tensor([384, 448, 512, 900]), max_length=512, buffer=128, penalty=1.0)
    tensor([ 0.0000, -0.5000, -1.0000, -1.0000], dtype=torch.float64)
    """
    if not 0 < buffer <= max_length:
        raise ConfigError(f"the overlong buffer must be 1 to max_length={max_length} tokens, not {buffer}")
    if not penalty >= 0:
        raise ConfigError(f"the overlong penalty is what an answer at the limit loses: 0 or more, not {penalty}")
    excess_B = (lengths_B.double() - (max_length - buffer)) / buffer
    return 0.0 - penalty * excess_B.clamp(0, 1)
