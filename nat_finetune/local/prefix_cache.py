"""Keys and values of what was read before: a later prompt that begins the same is computed from where it differs.

An entry is a token sequence, a prompt or a prompt with its reply, under one version of the weights: the cache lives and dies
with the engine's batch, which an update replaces. Any beginning of an entry serves, since a token's keys and values depend on
nothing after it. Tokens are compared, so that no two sequences can be taken for one another.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from nat_finetune.local.kv_cache import Layers, Trunk, size_of

BLOCK = 16
"""Beginnings are found by hashes of whole blocks of this many tokens; shorter ones are not worth keeping."""

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One sequence that was read."""

    tokens: Ids
    trunk: Trunk | None
    """Its beginning, where that is shared."""
    tail: Layers
    """What follows the trunk; no layers where nothing does."""
    hidden: Tensor | None = None
    """What the next token's logits are made from, where it was kept."""


class PrefixCache:
    """Entries within a budget; the one unused for longest goes first."""

    def __init__(self, budget: int) -> None:
        """`budget`: bytes; 0 keeps nothing."""
        self.bytes = 0
        """Memory that the entries take."""
        self._budget = budget
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        self._at: dict[int, Entry] = {}
        self._trunks: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def keeps(self) -> bool:
        """Whether it keeps anything at all."""
        return self._budget > 0

    def find(self, tokens: Ids) -> tuple[Entry, int] | None:
        """The entry that shares the longest beginning, and that beginning's length; None below BLOCK tokens."""
        for key in reversed(list(_block_keys(tokens))):
            entry = self._at.get(key)
            if entry is not None and (length := common_length(entry.tokens, tokens)) >= BLOCK:
                self._entries.move_to_end(id(entry))
                return entry, length
        return None

    def put(self, entry: Entry) -> None:
        """Keep an entry; one that it continues is no longer needed, and goes."""
        found = self.find(entry.tokens)
        if found is not None and found[1] == len(entry.tokens):
            return
        if found is not None and found[1] == len(found[0].tokens) and found[0].tail:
            self._drop(found[0])
        self._entries[id(entry)] = entry
        for key in _block_keys(entry.tokens):
            self._at[key] = entry
        self.bytes += size_of(entry.tail)
        if entry.trunk is not None:
            self._trunks[id(entry.trunk)] += 1
            self.bytes += entry.trunk.bytes if self._trunks[id(entry.trunk)] == 1 else 0
        while self.bytes > self._budget:
            self._drop(next(iter(self._entries.values())))

    def _drop(self, entry: Entry) -> None:
        del self._entries[id(entry)]
        for key in _block_keys(entry.tokens):
            if self._at.get(key) is entry:
                del self._at[key]
        self.bytes -= size_of(entry.tail)
        if entry.trunk is not None:
            self._trunks[id(entry.trunk)] -= 1
            if self._trunks[id(entry.trunk)] == 0:
                del self._trunks[id(entry.trunk)]
                self.bytes -= entry.trunk.bytes


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Tokens that two sequences begin with alike."""
    length = 0
    for a, b in zip(first, second, strict=False):  # the shorter one ends it
        if a != b:
            break
        length += 1
    return length


def _block_keys(tokens: Ids) -> Iterator[int]:
    key = 0
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        key = hash((key, tokens[start : start + BLOCK]))
        yield key
