"""Preference pairs as the files that NeMo RL's `PreferenceDataset` reads, and what had to be left out.

Its rules, which hold when a batch is made and not when a file is loaded, are kept here before anything is sent: two completions
of different rank, one schema for all rows, no `task_name` column (the class adds its own), and no pair that is longer than the
limit (NeMo RL keeps such a pair, with a loss of 0).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from nat_finetune.data.exports.formats import Exported, RowWriter
from nat_finetune.data.exports.index import digest
from nat_finetune.data.exports.sides import VALIDATION, drawn_sides, joined
from nat_finetune.data.keys import example_key
from nat_finetune.data.pair_splits import context_text
from nat_finetune.data.preparation import dropped_pair
from nat_finetune.data.seeds import derive_seed
from nat_finetune.errors import DataError, NoTrainableSignal
from nat_finetune.types import Dropped, DropReason, Message, PreferencePair

MeasureLength = Callable[[Sequence[Message], str], int]
"""Tokens of a context and an answer to it, as the model reads them."""


@dataclass(frozen=True, slots=True)
class PairFiles:
    """The rows of both files."""

    train: tuple[bytes, ...]
    validation: tuple[bytes, ...]
    dropped: tuple[Dropped, ...]
    notes: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Hash of what is trained on."""
        return sha256(b"\n".join([*self.train, b"", *self.validation])).hexdigest()


@dataclass(frozen=True, slots=True)
class PairRules:
    """What may stand in the files."""

    max_length: int
    fail_on_too_long: bool = False
    refuse_weights: bool = False
    validation_share: float = 0.0
    seed: int = 0


def pair_files(pairs: Iterable[PreferencePair], rules: PairRules, measure: MeasureLength | None) -> PairFiles:
    """The pairs as rows, some of them held out; `measure` is None where no tokenizer is at hand.

    Raises:
        DataError: a pair is too long and the config says to fail, or weights can't be written and it says to refuse.
        NoTrainableSignal: no pair is left.
    """
    writer, dropped, notes = RowWriter("nemo-rl", "pairs"), [], []
    kept: list[tuple[PreferencePair, bytes]] = []
    weighted, left_out, said = _unweighted(list(pairs), rules)
    dropped += left_out
    notes += said
    for pair in weighted:
        row = _row(writer, pair)
        if isinstance(row, Dropped):
            dropped.append(row)
        elif measure is not None and (length := _longest(pair, measure)) >= rules.max_length:
            dropped.append(_too_long(pair, length, rules))
        else:
            kept.append((pair, row))
    if not kept:
        raise NoTrainableSignal(f"no pair is left to train on: {len(dropped)} were left out ({_reasons(dropped)})")
    held = _held_out([pair for pair, _ in kept], rules)
    lines = [writer.finished(row) for _, row in kept]
    train = tuple(line for line, out in zip(lines, held, strict=True) if not out)
    validation = tuple(line for line, out in zip(lines, held, strict=True) if out)
    if rules.validation_share and not validation:
        notes.append(f"validation_share {rules.validation_share:g} holds nothing out: no cluster of pairs is that small")
    return PairFiles(train, validation, tuple(dropped), tuple(notes))


def _row(writer: RowWriter, pair: PreferencePair) -> bytes | Dropped:
    chosen, rejected = ({"role": "assistant", "content": text} for text in (pair.chosen, pair.rejected))
    try:
        return writer.line(Exported(pair.context, chosen, rejected))
    except DataError as error:
        return dropped_pair(pair, DropReason.NOT_IN_FORMAT, str(error))


def _longest(pair: PreferencePair, measure: MeasureLength) -> int:
    return max(measure(pair.context, pair.chosen), measure(pair.context, pair.rejected))


def _too_long(pair: PreferencePair, length: int, rules: PairRules) -> Dropped:
    """NeMo RL's versions differ in whether the limit itself is too long: it is left out."""
    detail = f"{length} tokens, max_length is {rules.max_length}"
    if rules.fail_on_too_long:
        raise DataError(f"a pair of example {pair.provenance.example_id!r} is too long: {detail} (on_too_long: fail)")
    return dropped_pair(pair, DropReason.TOO_LONG, detail)


def _unweighted(pairs: list[PreferencePair], rules: PairRules) -> tuple[list[PreferencePair], list[Dropped], list[str]]:
    """Pairs that all count the same: one of each candidate set where sets weigh, a row more for each further judgment.

    Raises:
        DataError: they weigh differently, and rows can't say it or shall not.
    """
    if len({round(pair.weight, 9) for pair in pairs}) <= 1:
        return pairs, [], []
    if rules.refuse_weights:
        raise DataError(
            "pairs weigh differently, and NeMo RL's file has no place for weights (pair_weights: refuse); let all count the "
            "same with `pair_weighting: pair` of the trainer, or draw one of each candidate set with pair_weights: sample"
        )
    sets: dict[str, list[int]] = {}
    for place, pair in enumerate(pairs):
        if pair.set_id is not None:
            sets.setdefault(pair.set_id, []).append(place)
    draw = random.Random(derive_seed(rules.seed, "pair_of_set"))
    drawn = {draw.choice(places) for places in sets.values()}
    kept, dropped = [], []
    for place, pair in enumerate(pairs):
        if pair.set_id is None or place in drawn:
            kept.append(pair)
        else:
            dropped.append(dropped_pair(pair, DropReason.ONE_OF_ITS_SET))
    notes = [f"pair weights: one pair of each of {len(sets):,} candidate sets was drawn"] if sets else []
    rows, said = _repeated(kept)
    return rows, dropped, [*notes, *said]


def _repeated(pairs: list[PreferencePair]) -> tuple[list[PreferencePair], list[str]]:
    """A pair that several people judged alike is written that many times.

    Raises:
        DataError: its weight is no whole number of judgments.
    """
    judged = [pair.weight for pair in pairs if pair.set_id is None]
    if len({round(weight, 9) for weight in judged}) <= 1:
        return pairs, []
    least = min(judged)
    times = [1 if pair.set_id is not None else pair.weight / least for pair in pairs]
    if any(abs(count - round(count)) > 1e-6 for count in times):
        raise DataError(
            f"people's pairs have weights from {least:g} to {max(judged):g}, which no number of rows can say; "
            "leave the weights out of the records"
        )
    rows = [pair for pair, count in zip(pairs, times, strict=True) for _ in range(round(count))]
    return rows, [f"pair weights: {len(rows) - len(pairs):,} rows say again what further people judged alike"]


def _held_out(pairs: list[PreferencePair], rules: PairRules) -> list[bool]:
    """Whole clusters: no example, task and context is on both sides."""
    if not rules.validation_share:
        return [False] * len(pairs)
    text = np.array([digest(context_text(pair.context)) for pair in pairs], np.uint64)
    cluster = np.array([digest(_task(pair)) for pair in pairs], np.uint64)
    sides = drawn_sides(joined(cluster, text), np.ones(len(pairs), np.bool_), rules.validation_share, seed=rules.seed)
    return [bool(side == VALIDATION) for side in sides]


def _task(pair: PreferencePair) -> str:
    where = pair.provenance
    return f"task {where.task_key}" if where.task_key is not None else f"example {example_key(where.example_id)}"


def _reasons(dropped: Sequence[Dropped]) -> str:
    counts: dict[str, int] = {}
    for drop in dropped:
        counts[drop.reason.value] = counts.get(drop.reason.value, 0) + 1
    return ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items())) or "nothing was there"
