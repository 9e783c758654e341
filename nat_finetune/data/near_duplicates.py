"""Texts that say nearly the same, found by MinHash and then measured; templated texts do not all count as one.

What a text is compared by is its *shingles*: words, and runs of three words. Shingles of many of the texts are their template
and are left out; the rest weigh log(1 + texts / texts with it), so that rare ones, which make a text what it is, weigh most.
The similarity of two texts is the cosine of these weights (0 to 1). MinHash with banding (Broder 1997; `datasketch`), of the
shingles that two or more texts have, finds the couples that are worth measuring, so that cost does not grow with the square.

Case, punctuation and spacing do not count. Texts that are equal without them have similarity 1, whatever they share with
others. A paraphrase in other words is not found: where it matters, give rows a task key.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nat_finetune.errors import ConfigError

THRESHOLD = 0.5
"""Default similarity from which two texts are near-duplicates."""
COMMON_SHARE = 0.03
COMMON_COUNT = 4
"""A shingle of more than `COMMON_COUNT` texts, and of more than `COMMON_SHARE` of them, is template."""
_BANDS, _ROWS = 42, 3
"""A couple with a share of s common shingles is measured with probability 1 - (1 - s³)⁴²: 0.996 at 0.5, 0.04 at 0.1."""
_WORD = re.compile(r"\w+(?:[.,:/-]\w+)*")

Shingles = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Similar:
    """Two near-duplicates, by their places in the given texts; `first` < `second`."""

    first: int
    second: int
    similarity: float


@dataclass(frozen=True, slots=True)
class _Vector:
    """A text as its weighted shingles."""

    shingles: Shingles
    """Sorted, without the template's."""
    weights: NDArray[np.float32]
    """Of each."""
    shared: Shingles
    """Those that another text has too: only these can find it."""
    norm: float


def normal_form(text: str) -> str:
    """The words of a text, without case, punctuation and spacing.

    >>> normal_form("The  claim, No. 12-A: € 1,250.00!")
    'the claim no 12-a 1,250.00'
    """
    return " ".join(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))


def near_duplicates(texts: Sequence[str], *, threshold: float = THRESHOLD, seed: int = 0) -> list[Similar]:
    """Couples of texts at least `threshold` similar, each text with those before it; equal ones only with the first of them.

    Args:
        texts: any number; only their words count.
        threshold: 0 to 1.
        seed: of the MinHash permutations.

    Raises:
        ConfigError: `datasketch` is not installed.
    """
    first: dict[str, int] = {}
    places: list[int] = []
    found: list[Similar] = []
    for place, text in enumerate(texts):
        normal = normal_form(text)
        if normal in first:
            found.append(Similar(first[normal], place, 1.0))
        else:
            first[normal] = place
            places.append(place)
    vectors = _vectors([_shingles(normal) for normal in first])
    for one, other in _candidates(vectors, seed):
        similarity = _cosine(vectors[one], vectors[other])
        if similarity >= threshold:
            found.append(Similar(places[one], places[other], similarity))
    return sorted(found, key=lambda couple: (couple.second, couple.first))


def _shingles(normal: str) -> Shingles:
    """Distinct hashes of a text's words and runs of three words, sorted."""
    words = np.array([_hash(word) for word in normal.split()], np.uint64)
    runs = words[:-2] * np.uint64(0x9E3779B97F4A7C15) + words[1:-1] * np.uint64(0xC2B2AE3D27D4EB4F) + words[2:]
    return np.unique(np.concatenate([words, runs ^ np.uint64(1)]))


def _hash(word: str) -> int:
    return int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "little")


def _vectors(shingles: Sequence[Shingles]) -> list[_Vector]:
    """Each text's shingles without the template's, and their weights."""
    if not shingles:
        return []
    known, counts = np.unique(np.concatenate(shingles), return_counts=True)
    common = max(COMMON_COUNT, COMMON_SHARE * len(shingles))
    vectors = []
    for of_text in shingles:
        texts_with_it = counts[np.searchsorted(known, of_text)]
        kept = texts_with_it <= common
        weights = np.log1p(len(shingles) / texts_with_it[kept]).astype(np.float32)
        norm = float(np.sqrt(np.square(weights).sum()))
        vectors.append(_Vector(of_text[kept], weights, of_text[kept & (texts_with_it > 1)], norm))
    return vectors


def _candidates(vectors: Sequence[_Vector], seed: int) -> Iterator[tuple[int, int]]:
    """Couples that have a good part of their shingles in common, by banded MinHash."""
    minhash, index = _datasketch()
    empty = minhash(_BANDS * _ROWS, seed=seed % 2**32, hashfunc=int)
    table = index(num_perm=_BANDS * _ROWS, params=(_BANDS, _ROWS))
    for place, vector in enumerate(vectors):
        if not len(vector.shared):
            continue  # like no other
        sketch = empty.copy()  # with the same permutations
        sketch.update_batch((vector.shared >> np.uint64(32)).tolist())
        yield from ((other, place) for other in sorted(table.query(sketch)))
        table.insert(place, sketch, check_duplication=False)


def _cosine(one: _Vector, other: _Vector) -> float:
    both = np.isin(one.shingles, other.shingles, assume_unique=True)  # a shingle weighs the same in both
    return float(np.square(one.weights[both]).sum()) / (one.norm * other.norm)


def _datasketch() -> tuple[Any, Any]:
    """`MinHash` and `MinHashLSH`; imported late, for it is an extra."""
    try:
        from datasketch import MinHash, MinHashLSH
    except ImportError as error:
        raise ConfigError("near-duplicates are found with datasketch: pip install 'nat-finetune[splits]'") from error
    return MinHash, MinHashLSH
