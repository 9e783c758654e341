"""Identity of examples, turns and contexts, with types: 1 is not "1"."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import sha256

from pydantic_core import to_json

from nat_finetune.errors import DataError
from nat_finetune.types import Example, ExampleId, Message, as_messages


def example_key(example_id: ExampleId) -> str:
    """An example's id as a text that differs wherever the ids differ; `json.loads` gives the id back.

    >>> example_key(1), example_key("1")
    ('1', '"1"')
    """
    return json.dumps(example_id, ensure_ascii=False)


def require_unique(ids: Iterable[ExampleId]) -> None:
    """Refuse two examples with the same id: their rollouts could not be told apart.

    Raises:
        DataError: names the ids that stand more than once.
    """
    counts = Counter(example_key(example_id) for example_id in ids)
    twice = [key for key, count in counts.items() if count > 1]
    if twice:
        shown = ", ".join(twice[:10])
        raise DataError(f"duplicate_example_id: {len(twice)} ids stand more than once: {shown}; give each example its own")


def examples_digest(examples: Sequence[Example]) -> str:
    """Hash of a dataset's examples as they were read, order included."""
    return sha256(to_json(examples, inf_nan_mode="constants")).hexdigest()[:16]


def turn_key(turn_id: str | int) -> tuple[str, str | int]:
    """A turn's id with its type."""
    return (type(turn_id).__name__, turn_id)


def context_key(context: str | Sequence[Message]) -> str:
    """Equal for two contexts exactly if their normal forms are equal; the order of a message's fields does not count."""
    return json.dumps(as_messages(context), sort_keys=True, ensure_ascii=False, default=dict)  # default: other mappings
