"""Attention over trees of rows against attention under a mask, forward and backward, whichever way it goes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from nat_finetune.data.layout import lay_out, seen
from nat_finetune.data.sharing import plan_units
from nat_finetune.local import branches, tiles
from nat_finetune.local.branches import Branches

SIZE = 16


def random_layout(seed, *, multiple, longest=60):
    """Groups of rows that begin alike, of unequal lengths; some add one token, some leave the group early."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(rng.integers(1, 6)):
        begin = rng.integers(5, 50, rng.integers(1, longest))
        for _ in range(rng.integers(1, 5)):
            cut = rng.integers(0, len(begin) + 1) if rng.random() < 0.3 else len(begin)
            rows.append(np.concatenate([begin[:cut], rng.integers(5, 50, rng.integers(1, 40))]).astype(np.int64))
    inputs = dict(enumerate(rows))
    units = [(row,) for row in inputs]
    [plan] = plan_units(inputs, units, max_tokens=1 << 20, tree_tokens=1 << 20, packed=True, multiple=multiple)
    return lay_out(plan.trees, inputs, packed=True, multiple=multiple)


def attend(layout, heads, key_heads, seed=0):
    """Result and gradients, and those under a mask."""
    length = layout.ids_L_T.shape[1]
    generator = torch.Generator().manual_seed(seed)

    def states(count):
        rows = torch.randn((1, length, count * SIZE), generator=generator)
        return rows.view(1, length, count, SIZE).transpose(1, 2).requires_grad_()

    query, key, value = states(heads), states(key_heads), states(key_heads)
    weight = torch.randn((1, length, heads, SIZE), generator=generator)
    found = Branches(layout.parts, torch.from_numpy(layout.positions_L_T)).attend(query, key, value, scale=0.3, window=None)
    mask = torch.from_numpy(seen(layout.parts, (1, length)))
    expected = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=0.3, enable_gqa=True)
    expected = expected.transpose(1, 2)
    return [(out, *torch.autograd.grad(out, (query, key, value), weight)) for out in (found, expected)]


@pytest.mark.parametrize("way", ["tiles, probabilities kept", "tiles", "parts"])
@pytest.mark.parametrize(("heads", "key_heads"), [(4, 2), (3, 3), (6, 1)])
def test_trees_are_attended_to_as_under_a_mask(way, heads, key_heads, monkeypatch):
    monkeypatch.setattr(branches, "_TILED", 0 if way == "parts" else 1 << 20)
    monkeypatch.setattr(tiles, "_KEPT", 1 << 20 if "kept" in way else 0)
    for seed in range(8):
        found, expected = attend(random_layout(seed, multiple=(1, 32)[seed % 2]), heads, key_heads)
        for mine, masked in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, masked, atol=1e-5, rtol=1e-5)


def test_a_single_token_attends_to_itself():
    layout = lay_out_one([7])
    found, expected = attend(layout, 4, 2)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def lay_out_one(tokens):
    inputs = {0: np.asarray(tokens, np.int64)}
    [plan] = plan_units(inputs, [(0,)], max_tokens=10, tree_tokens=10, packed=True, multiple=1)
    return lay_out(plan.trees, inputs, packed=True, multiple=1)


def test_attention_repeats_bit_for_bit():
    layout = random_layout(3, multiple=32)
    (first, _), (second, _) = attend(layout, 6, 2), attend(layout, 6, 2)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("way", [branches._by_tiles, branches._by_parts])
def test_ways_that_this_torch_cannot_go_are_not_gone(way, caplog):
    def wrong(query, key, value, parts, scale):
        return way(query, key, value, parts, scale * 1.01)

    def absent(query, key, value, parts, scale):
        raise AttributeError("no such operator")

    assert branches._is_right(way)
    assert not branches._is_right(wrong)
    assert "differ by" in caplog.text
    assert not branches._is_right(absent)
    assert "no such operator" in caplog.text
