"""Trainable items as rows of the service's files: what each says, which side it is on, and what was left out."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import PydanticSerializationError, from_json

from nat_finetune.data.exports.formats import Exported, RowWriter
from nat_finetune.data.keys import context_key, example_key
from nat_finetune.data.pair_splits import context_text
from nat_finetune.data.preparation import dropped_pair, record
from nat_finetune.data.seeds import derive_seed
from nat_finetune.data.splits import Row, clusters, ties
from nat_finetune.errors import ConfigError, DataError
from nat_finetune.types import Collection, Demonstration, Dropped, DropReason, PreferencePair

TextItem = PreferencePair | Demonstration
MOST_COPIES = 50
"""Rows of one pair, in place of a weight."""


@dataclass(frozen=True, slots=True)
class RowRules:
    """How items become rows."""

    training_type: str
    use_full_message_history: bool | None
    validation_split: float
    seed: int


@dataclass(frozen=True, slots=True)
class Rows:
    """What is trained on and validated on."""

    training: tuple[TextItem, ...]
    validation: tuple[TextItem, ...]
    dropped: tuple[Dropped, ...]
    notes: tuple[str, ...]
    rules: RowRules
    as_texts: bool
    """Whether prompts are texts: one form for all rows of both files."""
    copies: tuple[int, ...]
    """Of training and validation, in this order: how often each is written."""

    def lines(self, items: Sequence[TextItem], copies: Sequence[int]) -> Iterator[bytes]:
        """The rows as lines of ASCII, ends included."""
        writer = _Writer(self.rules)
        for item, count in zip(items, copies, strict=True):
            line = writer.line(item, as_texts=self.as_texts)
            for _ in range(count):
                yield line


def rows_of(collection: Collection, rules: RowRules) -> Rows:
    """The rows of a collection.

    Raises:
        ConfigError: the items are groups, or weigh differently in a way that rows can't say.
        DataError: nothing is left to train on.
    """
    items = _texts(collection)
    kept, dropped = _written(items, rules)
    if rules.training_type == "sft":
        kept, left_out = _unbeaten(kept)
        dropped += left_out
    if not kept:
        reasons = ", ".join(sorted({drop.reason.value for drop in dropped})) or "there were no items"
        raise DataError(f"nothing can be uploaded to NeMo Customizer: all {len(items)} items were left out ({reasons})")
    held_out, notes = _held_out(kept, rules)
    copies = _copies(kept)
    training = [place for place in range(len(kept)) if place not in held_out]
    validation = sorted(held_out)
    cut = sum(len(item.context) > 1 for item in kept) if rules.use_full_message_history is False else 0
    if cut:
        notes.append(f"use_full_message_history: false left {cut} of {len(kept)} prompts with their last message alone")
    if max(copies) > 1:
        notes.append("pairs that several people agreed on are written several times: the files have no place for weights")
    return Rows(
        training=tuple(kept[place] for place in training),
        validation=tuple(kept[place] for place in validation),
        dropped=tuple(dropped),
        notes=tuple(notes),
        rules=rules,
        as_texts=rules.use_full_message_history is None and all(item.context_text is not None for item in _pairs(kept)),
        copies=tuple(copies[place] for place in (*training, *validation)),
    )


class _Writer:
    """One item to one line."""

    def __init__(self, rules: RowRules) -> None:
        self._rules = rules
        self._rows = RowWriter("nemo-customizer", "demonstrations" if rules.training_type == "sft" else "pairs")

    def line(self, item: TextItem, *, as_texts: bool = False) -> bytes:
        """ASCII, so that no reader can take it for another encoding.

        Raises:
            DataError: the format can't hold the item; says why.
        """
        if isinstance(item, PreferencePair) and self._rules.training_type == "dpo":
            row = self._pair(item)
            if as_texts:
                row["prompt"] = item.context_text
        else:
            completion = item.chosen if isinstance(item, PreferencePair) else item.completion
            row = self._row(Exported(item.context, {"role": "assistant", "content": completion}))
        return json.dumps(row).encode("ascii") + b"\n"

    def _pair(self, pair: PreferencePair) -> dict[str, Any]:
        if self._rules.use_full_message_history is False:
            return record(pair, use_full_message_history=False)
        chosen, rejected = ({"role": "assistant", "content": text} for text in (pair.chosen, pair.rejected))
        return self._row(Exported(pair.context, chosen, rejected))

    def _row(self, said: Exported) -> dict[str, Any]:
        try:
            row: dict[str, Any] = from_json(self._rows.line(said))
        except PydanticSerializationError as error:
            raise DataError(f"it holds characters that are no text: {error}") from None
        return row


def _texts(collection: Collection) -> list[TextItem]:
    texts = [item for item in collection.items if isinstance(item, PreferencePair | Demonstration)]
    if len(texts) < len(collection.items) or collection.warm_up:
        what = "a warm-up on pairs" if collection.warm_up else "groups of rollouts"
        raise ConfigError(f"nemo_customizer_trainer_adapter takes preference pairs or demonstrations, found {what}")
    return texts


def _written(items: Sequence[TextItem], rules: RowRules) -> tuple[list[TextItem], list[Dropped]]:
    """The items that the format holds, and the others."""
    writer = _Writer(rules)
    kept: list[TextItem] = []
    dropped: list[Dropped] = []
    for item in items:
        if isinstance(item, Demonstration) and rules.training_type == "dpo":
            raise ConfigError("training_type: dpo takes preference pairs, found demonstrations: use training_type: sft")
        try:
            writer.line(item)
        except DataError as error:
            dropped.append(_left_out(item, DropReason.NOT_IN_FORMAT, str(error)))
        else:
            kept.append(item)
    return kept, dropped


def _unbeaten(items: Sequence[TextItem]) -> tuple[list[TextItem], list[Dropped]]:
    """Of pairs each chosen completion that nothing is preferred to in its context, once."""
    beaten = {(context_key(pair.context), pair.rejected) for pair in _pairs(items)}
    seen: set[tuple[str, str]] = set()
    kept: list[TextItem] = []
    dropped: list[Dropped] = []
    for item in items:
        completion = item.chosen if isinstance(item, PreferencePair) else item.completion
        said = (context_key(item.context), completion)
        if said in beaten:
            dropped.append(_left_out(item, DropReason.NOT_BEST, "another completion of this context is preferred to it"))
        elif isinstance(item, PreferencePair) and said in seen:
            dropped.append(_left_out(item, DropReason.DUPLICATE, "its chosen completion is trained on already"))
        else:
            seen.add(said)
            kept.append(item)
    return kept, dropped


def _held_out(items: Sequence[TextItem], rules: RowRules) -> tuple[set[int], list[str]]:
    """Places of the rows for validation: whole examples, and with them every row of an equal context or task."""
    service = "the service then validates on a tenth of the rows, whatever examples they are of"
    if not rules.validation_split:
        return set(), [f"no validation file, as validation_split: 0 says: {service}"]
    placed = [
        Row(str(place), context_text(item.context) or context_key(item.context), _task(item))
        for place, item in enumerate(items)
    ]
    heads = clusters(len(placed), ties(placed, by="task_key"))
    names = list(dict.fromkeys(heads))
    if len(names) == 1:
        return set(), [f"no validation file: all rows are of one example or task; {service}"]
    count = min(len(names) - 1, max(1, round(rules.validation_split * len(names))))
    drawn = set(random.Random(derive_seed(rules.seed, "nemo_customizer", "validation")).sample(names, count))
    return {place for place, head in enumerate(heads) if head in drawn}, []


def _task(item: TextItem) -> str:
    """What a row is not independent of: its example, or the task of its record."""
    where = item.provenance
    return where.task_key if where.task_key is not None else f"example {example_key(where.example_id)}"


def _copies(items: Sequence[TextItem]) -> list[int]:
    """Rows of each item, in proportion to the weights.

    Raises:
        ConfigError: no small whole numbers are in that proportion.
    """
    least = min(item.weight for item in items)
    if least <= 0:
        raise ConfigError(f"an item of weight {least:g} can't be written: NeMo Customizer's files have no place for weights")
    copies = [round(item.weight / least) for item in items]
    for item, count in zip(items, copies, strict=True):
        if abs(item.weight / least - count) > 1e-6 or count > MOST_COPIES:
            raise ConfigError(
                f"items weigh from {least:g} to {max(item.weight for item in items):g}, and NeMo Customizer's files have no "
                "place for weights: let all pairs count the same with pair_weighting: pair"
            )
    return copies


def _pairs(items: Iterable[TextItem]) -> list[PreferencePair]:
    return [item for item in items if isinstance(item, PreferencePair)]


def _left_out(item: TextItem, reason: DropReason, detail: str) -> Dropped:
    if isinstance(item, PreferencePair):
        return dropped_pair(item, reason, detail)
    where = item.provenance
    return Dropped(
        "demonstration",
        reason,
        detail,
        where.example_id,
        where.rollout_id,
        call_seq=where.chosen_call,
        record=where.record,
    )
