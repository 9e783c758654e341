"""Preference pairs to rows: the sampled ids where they are known, else what the chat template writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nat_finetune.data.batches import Rows
from nat_finetune.errors import DataError
from nat_finetune.local.chat import ChatFormat
from nat_finetune.local.scores import TEMPERATURE
from nat_finetune.types import Dropped, DropReason, Message, PreferencePair, Provenance

Ids = tuple[int, ...]
Side = tuple[Ids, Ids]
"""Prompt ids, completion ids."""
Sides = tuple[Side, Side]
"""Chosen, rejected."""


@dataclass(frozen=True, slots=True)
class PairRows:
    """The trainable content of a collection of pairs."""

    rows: Rows
    """Equal (prompt, completion) are one row, in however many pairs it stands."""
    items: list[list[tuple[int, ...]]]
    """For each pair one unit: the rows of its chosen and its rejected completion."""
    weights: NDArray[np.float32]
    """For each pair."""
    dropped: list[Dropped]
    truncated: int = 0
    """Pairs whose prompt lost its first tokens."""

    @property
    def trained_tokens(self) -> int:
        """Tokens under the loss masks, those of a row counted for every pair that it stands in."""
        tokens = self.rows.trained_tokens
        return int(sum(tokens[row] for units in self.items for unit in units for row in unit))


def encode_pairs(
    pairs: Sequence[PreferencePair], chat: ChatFormat, *, max_length: int | None, truncate_prompts: bool = False
) -> PairRows:
    """Rows of all pairs. A pair with a side longer than `max_length` tokens is dropped.

    With `truncate_prompts` its prompt loses its first tokens instead, on both sides the same; a completion is never cut.

    Raises:
        DataError: the chat template does not write a completion as a continuation of its prompt.
    """
    known: dict[tuple[Ids, Ids], int] = {}
    items: list[list[tuple[int, ...]]] = []
    weights: list[float] = []
    dropped: list[Dropped] = []
    truncated = 0
    for pair in pairs:
        whole = pair_ids(pair, chat)
        sides = fitted(whole, max_length, truncate_prompts=truncate_prompts)
        if sides is None:
            dropped.append(_too_long(pair.provenance, _longest(whole), max_length))
            continue
        truncated += sides != whole
        items.append([tuple(known.setdefault(side, len(known)) for side in sides)])
        weights.append(pair.weight)
    rows = Rows.of(
        [prompt + completion for prompt, completion in known],
        [[0] * len(prompt) + [1] * len(completion) for prompt, completion in known],
    )
    rows.columns[TEMPERATURE] = np.ones(len(rows.token_ids_N), np.float32)  # preferences are about the policy itself
    return PairRows(rows, items, np.array(weights, np.float32), dropped, truncated)


def fitted(sides: Sides, limit: int | None, *, truncate_prompts: bool) -> Sides | None:
    """The sides as they are trained and evaluated; None where one is longer than `limit` tokens and can't be shortened."""
    if limit is None or _longest(sides) <= limit:
        return sides
    shorter = _shortened(sides, limit) if truncate_prompts else sides
    return shorter if _longest(shorter) <= limit else None


def _longest(sides: Sides) -> int:
    return max(len(prompt) + len(completion) for prompt, completion in sides)


def _shortened(sides: Sides, limit: int) -> Sides:
    """The sides with the last tokens of their prompt that leave room for the longer completion; as they were if none does."""
    (prompt, chosen), (_, rejected) = sides
    room = limit - max(len(chosen), len(rejected))
    return sides if room < 1 else ((prompt[-room:], chosen), (prompt[-room:], rejected))


def pair_ids(pair: PreferencePair, chat: ChatFormat) -> Sides:
    """Prompt and completion ids of the chosen and of the rejected side."""
    if pair.prompt_ids is not None and pair.chosen_ids and pair.rejected_ids:
        return (pair.prompt_ids, pair.chosen_ids), (pair.prompt_ids, pair.rejected_ids)
    where = pair.provenance.record or f"example {pair.provenance.example_id!r}"
    return (
        completion_ids(pair.context, pair.chosen, chat, where=f"{where}, chosen"),
        completion_ids(pair.context, pair.rejected, chat, where=f"{where}, rejected"),
    )


def completion_ids(context: Sequence[Message], text: str, chat: ChatFormat, *, where: str) -> tuple[Ids, Ids]:
    """Prompt ids, and the ids of a completion as the template writes it: up to its end-of-turn token and nothing after.

    Raises:
        DataError: the prompt is no beginning of the whole conversation, the template ends a turn without an end-of-turn
            token, or the text contains one.
    """
    prompt = chat.render(context)
    whole = chat.render_finished([*context, {"role": "assistant", "content": text}])
    if whole[: len(prompt)] != prompt:
        at = next((i for i, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b), min(len(prompt), len(whole)))
        raise DataError(
            f"{where}: the chat template writes the finished conversation differently from the prompt, from token {at} of "
            f"{len(prompt)} on (prompt: {chat.decode(prompt[at : at + 8])!r}, conversation: "
            f"{chat.decode(whole[at : at + 8])!r}): give the pair's token ids, or use a template that keeps prompts as "
            "they are (thinking templates often don't)"
        )
    completion = whole[len(prompt) :]
    ends = [index for index, token in enumerate(completion) if token in chat.stop_ids]
    if not ends:
        raise DataError(
            f"{where}: the chat template ends the assistant's turn without an end-of-turn token "
            f"({', '.join(repr(chat.decode((token,))) for token in chat.stop_ids)}): the policy could not learn to stop"
        )
    if any(token in chat.stop_ids for token in chat.encode(text)):
        raise DataError(f"{where}: the text contains an end-of-turn token: remove it, the template adds its own")
    return prompt, completion[: ends[0] + 1]


def _too_long(provenance: Provenance, length: int, limit: int | None) -> Dropped:
    return Dropped(
        what="pair",
        reason=DropReason.TOO_LONG,
        detail=f"{length} tokens, max_length is {limit}",
        example_id=provenance.example_id,
        rollout_id=provenance.rollout_id,
        call_seq=provenance.chosen_call,
        rejected_call=provenance.rejected_call,
        record=provenance.record,
    )
