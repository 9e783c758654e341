"""Pairs made ready for a trainer: a maximum, a split by example, and the record that a service reads."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from nat_finetune.data.keys import context_key, example_key
from nat_finetune.data.pairs import answer_in_context
from nat_finetune.errors import DataError
from nat_finetune.types import Dropped, DropReason, PreferencePair

PairKey = tuple[bytes, str, str]
"""Digest of the context, chosen, rejected."""


def draw_pairs(pairs: Sequence[PreferencePair], count: int, *, seed: int) -> tuple[list[PreferencePair], list[Dropped]]:
    """Exactly `count` pairs, drawn with the seed and left in their order; all where there are no more."""
    if len(pairs) <= count:
        return list(pairs), []
    chosen = set(random.Random(seed).sample(range(len(pairs)), count))
    kept = [pair for position, pair in enumerate(pairs) if position in chosen]
    return kept, [dropped_pair(p, DropReason.MAX_PAIRS) for position, p in enumerate(pairs) if position not in chosen]


def split_by_example(
    pairs: Sequence[PreferencePair], *, seed: int, share: float = 0.2
) -> tuple[list[PreferencePair], list[PreferencePair]]:
    """(training, validation), no example on both sides.

    Validation has round(share * examples) examples: at least 1 of two or more, none of a single one.
    """
    examples = list(dict.fromkeys(example_key(pair.provenance.example_id) for pair in pairs))
    count = max(1, round(share * len(examples))) if len(examples) > 1 else 0
    held_out = set(random.Random(seed).sample(examples, count))
    training: list[PreferencePair] = []
    validation: list[PreferencePair] = []
    for pair in pairs:
        (validation if example_key(pair.provenance.example_id) in held_out else training).append(pair)
    return training, validation


def record(pair: PreferencePair, *, use_full_message_history: bool) -> dict[str, Any]:
    """The record {prompt, chosen_response, rejected_response} of NeMo Customizer's DPO dataset.

    Raises:
        DataError: without the history, the prompt would be one of the two answers.
    """
    return {
        "prompt": _prompt(pair, full=use_full_message_history),
        "chosen_response": pair.chosen,
        "rejected_response": pair.rejected,
    }


def _prompt(pair: PreferencePair, *, full: bool) -> str | list[Mapping[str, Any]]:
    if full:
        return list(pair.context)
    if pair.context_text is not None:
        return pair.context_text
    last = pair.context[-1] if pair.context else {}
    if last.get("role") == "user" and isinstance(last.get("content"), str):
        return str(last["content"])
    if answer_in_context(pair.context, pair.chosen, pair.rejected):
        raise DataError(
            f"answer_in_context: the last message of the context of example {pair.provenance.example_id!r} is one of the two "
            "answers; record the context before the answer is added to it"
        )
    return list(pair.context)


def pair_key(pair: PreferencePair) -> PairKey:
    """Equal for pairs that say the same."""
    # A digest: a million contexts are not held a second time.
    return (blake2b(context_key(pair.context).encode(), digest_size=16).digest(), pair.chosen, pair.rejected)


def dropped_pair(pair: PreferencePair, reason: DropReason, detail: str = "") -> Dropped:
    """The pair as something left out."""
    where = pair.provenance
    return Dropped(
        "pair", reason, detail, where.example_id, where.rollout_id, where.chosen_call, where.rejected_call, where.record
    )
