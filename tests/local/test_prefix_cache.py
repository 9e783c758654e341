"""Which beginnings are found, and what is kept."""

from __future__ import annotations

import torch

from nat_finetune.local.kv_cache import Trunk
from nat_finetune.local.prefix_cache import BLOCK, Entry, PrefixCache

KILO = 1024


def layers(kilobytes: int):
    """One layer: keys and values of so much in sum."""
    half = torch.zeros(1, kilobytes * KILO // 8, 1)
    return [(half, half.clone())]


def entry(tokens, trunk: Trunk | None = None, kilobytes: int = 1) -> Entry:
    return Entry(tuple(tokens), trunk, layers(kilobytes))


def test_the_longest_common_beginning_is_found_to_the_token():
    cache = PrefixCache(100 * KILO)
    short, long = entry(range(40)), entry([*range(30), *range(100, 150)])
    cache.put(short)
    cache.put(long)
    assert cache.find(tuple(range(60))) == (short, 40)
    assert cache.find((*range(30), *range(100, 137), 5)) == (long, 67)
    assert cache.find(tuple(range(BLOCK))) is not None
    assert cache.find((*range(BLOCK - 1), 99, *range(50))) is None, "less than a block is alike"
    assert cache.find(tuple(range(7, 60))) is None


def test_equal_hashes_are_no_equal_tokens(monkeypatch):
    monkeypatch.setattr("nat_finetune.local.prefix_cache.hash", lambda _: 1, raising=False)
    cache = PrefixCache(100 * KILO)
    cache.put(entry(range(40)))
    assert cache.find(tuple(range(50, 90))) is None


def test_what_continues_an_entry_takes_its_place():
    cache = PrefixCache(100 * KILO)
    cache.put(entry(range(40)))
    cache.put(entry(range(70)))
    assert (len(cache), cache.bytes) == (1, KILO)
    cache.put(entry(range(50)))
    assert len(cache) == 1, "a beginning of what is there is not kept again"


def test_the_one_unused_for_longest_goes_first():
    cache = PrefixCache(3 * KILO)
    for start in (0, 1000, 2000):
        cache.put(entry(range(start, start + 20)))
    assert cache.find(tuple(range(20))) is not None
    cache.put(entry(range(3000, 3020)))
    assert cache.bytes == 3 * KILO
    assert cache.find(tuple(range(20))) is not None
    assert cache.find(tuple(range(1000, 1020))) is None
    cache.put(entry(range(4000, 4020), kilobytes=4))
    assert (len(cache), cache.bytes) == (0, 0), "larger than the budget: nothing is left, not even it"


def test_a_trunk_counts_once_and_as_long_as_it_is_used():
    cache, trunk = PrefixCache(12 * KILO), Trunk(layers(8), 20)
    for last in (1, 2):
        cache.put(entry([*range(20), last], trunk))
    assert cache.bytes == 10 * KILO
    for start in range(1000, 1000 + 4 * 20, 20):
        cache.put(entry(range(start, start + 20)))
    assert cache.bytes == 4 * KILO
