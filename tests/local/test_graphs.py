"""What of CUDA graphs can be seen without CUDA; tests/gpu has the rest."""

from __future__ import annotations

import logging

import pytest
import torch

from nat_finetune.local.forward import forward_of
from nat_finetune.local.graphs import REACH_STEP, ROWS_STEP, DecodeGraphs
from nat_finetune.local.kv_cache import Prefill, SlotCache
from tests.fixtures.models import tiny_model

ids = torch.tensor([[7], [8], [9]])
places = torch.full((3, 1), 4)


@pytest.fixture
def graphs():
    forward, cache = forward_of(tiny_model("llama")[0]), SlotCache()
    cache.reserve(3, 6, used=0)
    positions = torch.arange(4).expand(3, -1)
    with torch.inference_mode():
        forward.hidden(positions + 20, positions, Prefill(cache, 0, positions))
    return DecodeGraphs(forward, cache)


def test_a_cpu_steps_as_it_is(graphs):
    assert graphs.logits(ids, places, 5) is None


@torch.inference_mode()
def test_where_nothing_can_be_recorded_steps_go_on_without(graphs, monkeypatch, caplog):
    def refuse(*_):
        raise RuntimeError("no capture here")

    graphs.usable = True
    monkeypatch.setattr(torch.cuda, "Stream", refuse)
    with caplog.at_level(logging.WARNING, logger="nat_finetune"):
        assert graphs.logits(ids, places, 5) is None
    assert "no capture here" in caplog.text
    assert not graphs.usable


@torch.inference_mode()
def test_rows_are_padded_to_slots_that_are_there_and_hold_nothing_of_others(graphs, monkeypatch):
    """A recording that runs at once instead of later stands in for CUDA's: shapes, slots and results are real."""
    seen = []

    class Now:
        def __init__(self, ids_B_1, places_B_1, reach):
            self.ids_B_1, self.places_B_1, self.graph, self._reach = ids_B_1.clone(), places_B_1.clone(), self, reach
            seen.append((tuple(ids_B_1.shape), reach))

        def replay(self):
            from nat_finetune.local.kv_cache import Extend

            slots = Extend(graphs._cache, self.places_B_1, self._reach)
            self.logits_B_V = graphs._forward.logits(graphs._forward.hidden(self.ids_B_1, self.places_B_1, slots)[:, 0])

    graphs.usable = True
    monkeypatch.setattr(graphs, "_record", Now)
    found = [graphs.logits(ids, places + step, 5 + step) for step in range(2)]
    assert seen == [((ROWS_STEP, 1), REACH_STEP)], "one recording for both"
    assert graphs._cache.slots >= ROWS_STEP
    model = graphs._forward
    cache = SlotCache()
    cache.reserve(3, 6, used=0)
    tokens = torch.cat([torch.arange(20, 24).expand(3, -1), ids, ids], 1)
    positions = torch.arange(6).expand(3, -1)
    hidden = model.hidden(tokens, positions, Prefill(cache, 0, positions))
    for step in range(2):
        assert (model.logits(hidden[:, 4 + step]) - found[step]).abs().max() < 1e-5
