"""Values of all processes of a distributed update: what is normalised over a batch must see the whole batch."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def gather_rows(values_B: Tensor) -> tuple[Tensor, slice]:
    """The rows of every rank behind one another, in the order of ranks, and which of them are this rank's.

    Ranks may hold different numbers of rows. Without a process group these are the rows as they are.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return values_B, slice(0, len(values_B))
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(values_B)]))
    counts = [int(size) for size in sizes]
    padded = values_B.new_zeros((max(counts), *values_B.shape[1:]))
    padded[: len(values_B)] = values_B
    parts = [torch.zeros_like(padded) for _ in counts]
    dist.all_gather(parts, padded)
    begin = sum(counts[: dist.get_rank()])
    rows = torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])
    return rows, slice(begin, begin + len(values_B))


def rank() -> int:
    """This process's rank; 0 without a process group."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
