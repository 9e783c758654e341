"""The datasets: can they be read, do they leak into one another, do they say the same things twice or different ones?"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from nat_finetune.checks.doctor.finding import Finding, error, note, warning
from nat_finetune.config.schema import RunConfig
from nat_finetune.data.splits import Side
from nat_finetune.preflight.holdout import DataSets
from nat_finetune.types import Dropped, Example

MANY = 0.01
"""Share of the training set from which copies are no accident."""
FEW_CLUSTERS = 8
_HELD_OUT: tuple[Side, ...] = ("validation", "test")


def data_findings(config: RunConfig, data: DataSets) -> Iterator[Finding]:
    """What is to say of datasets that were read with leaks let pass."""
    if data.leaks:
        say = warning if config.finetuning.allow_leakage else error
        message = f"{len(data.leaks):,} held-out examples leak into training, such as {data.leaks[0]}"
        fix = "take them out of one side, or let finetuning.split make the sides"
        yield say("data.leak", message, fix, "eval.general.dataset")
    # One that names leaks says the same as above.
    for text in (text for text in data.warnings if not text.startswith("allow_leakage") and "near-duplicates" in text):
        yield note("data.not-looked", text, "pip install 'nat-finetune[splits]'", "finetuning.split")
    yield from left_out_findings(data.dropped, "finetuning.split")
    yield from _copies(data.train)
    for side in _HELD_OUT:
        clusters = len(set(data.clusters[side].values()))
        if data.of(side) and clusters < FEW_CLUSTERS:
            message = f"{clusters} independent examples: only a large gain can be told from chance"
            yield warning("data.held-out-small", message, "hold out some 30 or more", f"finetuning.{side}")


def left_out_findings(dropped: Sequence[Dropped], key: str) -> Iterator[Finding]:
    """Rows that are left out before anything begins."""
    if dropped:
        message = (
            f"{len(dropped):,} are left out, such as {dropped[0].record or repr(dropped[0].example_id)}: {dropped[0].detail}"
        )
        yield warning("data.left-out", message, "mend or remove them", key)


def _copies(examples: Sequence[Example]) -> Iterator[Finding]:
    """Equal examples, whatever their ids, and equal inputs with different answers."""
    key = "eval.general.dataset"
    whole = Counter(_text([example.input, example.target, example.metadata]) for example in examples)
    copies = sum(count - 1 for count in whole.values())
    if copies:
        say = warning if copies > MANY * len(examples) else note
        message = f"{copies:,} of {len(examples):,} examples are copies of others: what stands twice is trained twice"
        yield say("data.duplicates", message, "take the copies out, unless the weight is meant", key)
    targets: dict[str, set[str]] = {}
    first: dict[str, Example] = {}
    for example in examples:
        given = _text([example.input, example.metadata])
        first.setdefault(given, example)
        if example.target is not None:
            targets.setdefault(given, set()).add(_text(example.target))
    torn = [given for given, known in targets.items() if len(known) > 1]
    if torn:
        message = f"{len(torn):,} inputs have different targets, such as that of example {first[torn[0]].id!r}"
        yield warning("data.contradiction", message, "keep the target that is right", key)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=repr)
