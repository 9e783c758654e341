"""Decode steps on a GPU, recorded once and replayed: a small model's step is otherwise spent on starting its kernels.

A recording reads and writes memory at fixed addresses: one belongs to a number of rows, a reach, and the slots as they are
placed. Rows are padded up to a few sizes, so that few recordings serve. Weights are read where they are: what training changes
in place is what the next replay samples from.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nat_finetune.local.forward import Forward
from nat_finetune.local.kv_cache import Extend, SlotCache

_log = logging.getLogger(__name__)

ROWS_STEP = 8
REACH_STEP = 256
_MOST = 32
"""Recordings kept; they share their working memory."""


@dataclass(frozen=True, slots=True)
class _Recording:
    graph: torch.cuda.CUDAGraph
    ids_B_1: Tensor
    places_B_1: Tensor
    logits_B_V: Tensor


class DecodeGraphs:
    """Recordings of one forward over one cache."""

    def __init__(self, forward: Forward, cache: SlotCache) -> None:
        self._forward = forward
        self._cache = cache
        self._recordings: dict[tuple[int, int, int], _Recording] = {}
        self._pool: Any = None
        self.usable = forward.device.type == "cuda"
        """Whether steps can be recorded; a model that turns out not to allow it is stepped as it is."""

    def __len__(self) -> int:
        return len(self._recordings)

    def logits(self, ids_B_1: Tensor, places_B_1: Tensor, reach: int) -> Tensor | None:
        """Logits after one more token of slots 0 … B-1, [B, V]; None where this can't be recorded."""
        if not self.usable:
            return None
        rows = len(ids_B_1)
        padded = -(-rows // ROWS_STEP) * ROWS_STEP
        reach = -(-reach // REACH_STEP) * REACH_STEP
        self._cache.reserve(padded, reach, used=rows)
        # Padding rows write to position 0 of slots that nobody uses.
        ids_B_1 = functional.pad(ids_B_1, (0, 0, 0, padded - rows))
        places_B_1 = functional.pad(places_B_1, (0, 0, 0, padded - rows))
        key = (padded, reach, self._cache.place)
        if key not in self._recordings:
            self._forget_old()
            made = self._record(ids_B_1, places_B_1, reach)
            if made is None:
                return None
            self._recordings[key] = made
        recording = self._recordings[key]
        recording.ids_B_1.copy_(ids_B_1)
        recording.places_B_1.copy_(places_B_1)
        recording.graph.replay()
        return recording.logits_B_V[:rows]

    def _forget_old(self) -> None:
        placed = {key: found for key, found in self._recordings.items() if key[2] == self._cache.place}
        self._recordings = placed if len(placed) < _MOST else {}

    def _record(self, ids_B_1: Tensor, places_B_1: Tensor, reach: int) -> _Recording | None:
        """Record the step that is due; the trial before it stores the very keys and values that the replay stores again."""
        ids, places = ids_B_1.clone(), places_B_1.clone()

        def step() -> Tensor:
            hidden = self._forward.hidden(ids, places, Extend(self._cache, places, reach))
            return self._forward.logits(hidden[:, 0])

        try:
            stream = torch.cuda.Stream(ids.device)  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream(ids.device))
            with torch.cuda.stream(stream):
                step()  # kernels and libraries initialise themselves outside of the recording
            torch.cuda.current_stream(ids.device).wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                logits = step()
        except RuntimeError as error:
            _log.warning("decode steps can't be recorded as CUDA graphs, so they start kernel by kernel (%s)", error)
            self.usable = False
            return None
        self._pool = graph.pool()
        return _Recording(graph, ids, places, logits)
