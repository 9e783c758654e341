"""Items to TRL's rows: the messages as its dataset format has them, and the token ids that are trained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nat_finetune.errors import ConfigError, DataError, Problem
from nat_finetune.local.settings import SupervisedSettings
from nat_finetune.types import Collection, Demonstration, Dropped, PreferencePair

if TYPE_CHECKING:
    from nat_finetune.data.batches import Rows
    from nat_finetune.local.chat import ChatFormat

Row = dict[str, Any]


@dataclass(slots=True)
class Encoded:
    """The rows of a collection."""

    rows: list[Row] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    tokens: int = 0
    """Of the completions that are trained."""


def encode(collection: Collection, chat: ChatFormat, *, max_length: int | None) -> Encoded:
    """Rows of all pairs or demonstrations that are not too long.

    Raises:
        DataError: the chat template does not write a completion as a continuation of its prompt.
        ConfigError: items count differently, and TRL weighs all alike.
    """
    from nat_finetune.local.demonstrations import DemonstrationObjective
    from nat_finetune.local.pair_rows import encode_pairs

    made = Encoded()
    weights = {item.weight for item in collection.items if isinstance(item, PreferencePair | Demonstration)}
    if len(weights) > 1:
        hint = "set pair_weighting: pair in the trainer, and give all labels one weight"
        raise ConfigError(Problem(f"items have {len(weights)} different weights, and TRL weighs all alike", hint=hint))
    for item in collection.items:
        if isinstance(item, PreferencePair):
            encoded = encode_pairs([item], chat, max_length=max_length)
            _add(made, encoded.rows, encoded.dropped, ("chosen", "rejected"), _pair(item))
        elif isinstance(item, Demonstration):
            objective = DemonstrationObjective([item], chat, SupervisedSettings(), max_length=max_length)
            _add(made, objective.rows, objective.dropped, ("completion",), _demonstration(item))
    return made


def too_long(dropped: Sequence[Dropped]) -> None:
    """Refuse what was dropped, where the config says so.

    Raises:
        DataError: something was.
    """
    if dropped:
        first = dropped[0]
        where = first.record or f"example {first.example_id!r}"
        raise DataError(
            f"{len(dropped)} items are too long, such as a {first.what} of {where} with {first.detail} (on_too_long: fail): "
            "raise max_length, shorten them, or set on_too_long: drop"
        )


def _add(made: Encoded, rows: Rows, dropped: Sequence[Dropped], sides: Sequence[str], said: Row) -> None:
    if dropped:
        made.dropped += dropped
        return
    ids: Row = {}
    for index, side in enumerate(sides):
        start, end = int(rows.starts[index]), int(rows.starts[index + 1])
        first = start + int(rows.loss_mask_N[start:end].argmax())
        ids["prompt_ids"] = rows.token_ids_N[start:first].tolist()
        ids[f"{side}_ids"] = rows.token_ids_N[first:end].tolist()
        made.tokens += end - first
    made.rows.append(said | ids)


def _pair(pair: PreferencePair) -> Row:
    return {"prompt": _messages(pair.context), "chosen": _said(pair.chosen), "rejected": _said(pair.rejected)}


def _demonstration(item: Demonstration) -> Row:
    return {"prompt": _messages(item.context), "completion": _said(item.completion)}


def _messages(context: Iterable[Mapping[str, Any]]) -> list[Row]:
    return [dict(message) for message in context]


def _said(text: str) -> list[Row]:
    return [{"role": "assistant", "content": text}]
