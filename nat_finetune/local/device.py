"""Where a model is, and what the machine's threads and memory are told for it."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_PAUSE_HARD = 2  # omp_pause_hard, OpenMP 5.0, section 3.6
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h
_LARGEST_KEPT = 32 << 20
"""Bytes of the largest piece that is kept: glibc takes no larger bound."""
_KEPT = (1 << 31) - 1
"""Bytes that are kept at most: C's largest int."""


def place(model: Any) -> tuple[torch.device, int]:
    """A model's device, and the tokens of a forward that it is fastest with."""
    device: torch.device = model.get_input_embeddings().weight.device
    # A CPU is faster while activations stay in its caches (measured: 1.4 times).
    return device, 512 if device.type == "cpu" else 8192


def end_helpers() -> None:
    """End the OpenMP threads that help the calling thread; its next operation starts them again (about 0.1 ms).

    Each thread that computes has helpers of its own. With more of them in the process than CPUs, GNU's OpenMP puts a helper to
    sleep as soon as it has nothing to do, and waking it costs 0.05 ms: a third of an update of a small model, whose operations
    are that short. So whoever has computed ends its helpers before another thread's turn.
    """
    pause = _omp_pause()
    if pause is not None:
        pause(_PAUSE_HARD)


@functools.cache
def _omp_pause() -> Callable[[int], int] | None:
    """`omp_pause_resource_all` of the library that torch uses; None where that is not GNU's, or is older than OpenMP 5.0."""
    if sys.platform != "linux":
        return None
    for path in (Path(torch.__file__).parent / "lib").glob("libgomp*.so*"):
        try:
            library = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD)
            pause: Callable[[int], int] = library.omp_pause_resource_all
        except (OSError, AttributeError):
            continue
        return pause
    return None


def share_freed_memory() -> None:
    """Let what one thread has freed serve all others, and keep it for them; before the first large allocation.

    glibc keeps what each thread has freed for that thread: what rollouts used and what updates use would add up, although they
    are never at work together. And it hands large pieces back to the system, which then has to clear them again for the next
    operation: a tenth of an update. Other C libraries can't be asked, and nothing happens.
    """
    if sys.platform != "linux":
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # musl
        return
    for parameter, value in ((_M_ARENA_MAX, 1), (_M_MMAP_THRESHOLD, _LARGEST_KEPT), (_M_TRIM_THRESHOLD, _KEPT)):
        mallopt(parameter, value)
