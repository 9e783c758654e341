"""Named seeds: every random draw of a run comes from a generator that says what it is for.

A seed is derived from the run's seed and the names of its purpose, so that adding a draw somewhere changes no other draw.
"""

from __future__ import annotations

from hashlib import blake2b

from nat_finetune.types import ExampleId


def derive_seed(seed: int, *purpose: ExampleId) -> int:
    """A 63-bit seed for one purpose, such as `derive_seed(7, "rollout", step, example_id, generation)`.

    Parts keep their type: 1 and "1" give different seeds.

    >>> derive_seed(7, "shuffle", 0) == derive_seed(7, "shuffle", 0), derive_seed(7, "a", 1) == derive_seed(7, "a", "1")
    (True, False)
    """
    text = "\x1f".join([str(seed), *(repr(part) for part in purpose)])
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
