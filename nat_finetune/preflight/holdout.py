"""What a run trains on and what it holds out: datasets of their own or parts of one, with nothing on both sides."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from nat_finetune.compose import Composition, record_dataset_of
from nat_finetune.config.held_out import HELD_OUT
from nat_finetune.config.schema import EvaluationConfig, RunConfig, SplitConfig
from nat_finetune.data.keys import example_key
from nat_finetune.data.manifest import Manifest, manifest_for
from nat_finetune.data.pair_splits import pair_rows
from nat_finetune.data.splits import SIDES, Leak, Row, Side, Tie, assign, clusters, leaks, ties
from nat_finetune.errors import ConfigError, DataError, Problem
from nat_finetune.held_pairs import PairData, load_pairs
from nat_finetune.types import Dropped, DropReason, Example, Item, PreferencePair

_TRAIN_KEY = "eval.general.dataset"
_NOT_LOOKED = (
    "near-duplicates between training and held-out examples were not looked for: pip install 'nat-finetune[splits]', or set "
    "finetuning.split.by: task_key"
)
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class DataSets:
    """The examples of a run, by what they are for."""

    train: list[Example]
    validation: list[Example]
    test: list[Example]
    clusters: Mapping[Side, Mapping[str, str]]
    """For each set example key → what it is not independent of: its task, or its near-duplicates."""
    manifest: Manifest | None = None
    """Which example is where, if they are parts of one dataset."""
    notes: tuple[str, ...] = ()
    """For the account."""
    warnings: tuple[str, ...] = ()
    leaks: tuple[str, ...] = ()
    """Each leak that `allow_leakage` let pass."""
    dropped: tuple[Dropped, ...] = ()
    pairs: PairData = field(default_factory=PairData)
    """What is held out of preference records."""

    @property
    def holds_out(self) -> bool:
        """Whether there is anything that must not be trained on."""
        return bool(self.validation or self.test or self.pairs.held)

    def of(self, side: Side) -> list[Example]:
        """One of the sets."""
        return {"train": self.train, "validation": self.validation, "test": self.test}[side]


@dataclass(slots=True)
class _Loaded:
    """Examples with the side that each is on and the place in the config where it comes from."""

    examples: list[Example] = field(default_factory=list)
    sides: list[Side | None] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    def add(self, examples: Sequence[Example], side: Side | None, key: str) -> None:
        self.examples += examples
        self.sides += [side] * len(examples)
        self.keys += [key] * len(examples)

    def names(self) -> list[str]:
        return [f"{example.id!r} ({key})" for example, key in zip(self.examples, self.keys, strict=True)]


async def load_data(config: RunConfig, parts: Composition, kept: Manifest | None) -> DataSets:
    """Read all datasets of examples that the config names, and hold pairs out where the builder reads records.

    Args:
        config: What to read.
        parts: Its components.
        kept: The split of the run that is continued; None: that of `finetuning.split.manifest`, or none.

    Raises:
        DataError: a dataset is empty or can't be read, a side would be empty, or held-out examples leak (`allow_leakage` lets
            them pass).
        ConfigError: there is nothing to train on, or near-duplicates are asked for without the package that finds them.
    """
    finetuning, split = config.finetuning, config.finetuning.split or SplitConfig()
    pairs = await load_pairs(config, parts, kept)
    parted = bool(split.validation or split.test) and record_dataset_of(config) is None
    loaded = _Loaded()
    if config.eval.general.dataset is not None and record_dataset_of(config) is None:
        train = await parts.load_examples(config.eval.general.dataset, _TRAIN_KEY)
        loaded.add(train, None if parted else "train", _TRAIN_KEY)
    elif record_dataset_of(config) is None:
        raise ConfigError(Problem("a run needs examples to train on", key=_TRAIN_KEY))
    loaded.add(*await _held_out(parts, finetuning.validation, "validation"))
    loaded.add(*await _held_out(parts, finetuning.test, "test"))
    rows = [_row(example) for example in loaded.examples]
    found, warnings = _ties(rows, config)
    warnings += pairs.warnings
    notes = list(pairs.notes)
    dropped: list[Dropped] = []
    manifest = pairs.manifest
    if parted:
        if kept is None and split.manifest is not None:
            kept = manifest_for(Path(split.manifest), [row.key for row in rows])
        manifest, dropped = _part(loaded, rows, found, split, finetuning.seed, kept)
        notes.append(_split_note(loaded, split, kept))
        warnings += [f"{drop.example_id!r} is left out: {drop.detail}" for drop in dropped[:_SHOWN]]
    passed = _check(loaded.names(), leaks(loaded.sides, found), allowed=finetuning.allow_leakage)
    warnings += _passed(passed)
    sets: dict[Side, list[Example]] = {
        side: [e for e, at in zip(loaded.examples, loaded.sides, strict=True) if at == side] for side in SIDES
    }
    return DataSets(
        sets["train"],
        sets["validation"],
        sets["test"],
        clusters=_clusters(loaded, rows, found),
        manifest=manifest,
        notes=tuple(notes),
        warnings=tuple(warnings),
        leaks=tuple(passed),
        dropped=tuple(dropped),
        pairs=pairs,
    )


async def load_held_out(
    config: RunConfig, parts: Composition, side: Literal["validation", "test"], kept: Manifest | None
) -> tuple[list[Example], Mapping[str, str]]:
    """One held-out set and its clusters, for an evaluation by itself.

    Raises:
        ConfigError: the config names no such dataset.
        DataError: it can't be read.
    """
    settings = config.finetuning.test if side == "test" else config.finetuning.validation
    if settings is None:
        raise ConfigError(Problem("the config has no such dataset", f"finetuning.{side}"))
    if settings.dataset is None:
        data = await load_data(config, parts, kept)
        return data.of(side), data.clusters[side]
    loaded = _Loaded()
    loaded.add(*await _held_out(parts, settings, side))
    rows = [_row(example) for example in loaded.examples]
    found, _ = _ties(rows, config)
    return loaded.examples, _clusters(loaded, rows, found)[side]


def check_pairs(items: Sequence[Item], data: DataSets, config: RunConfig) -> list[str]:
    """Whether pairs to train on leak into held-out pairs or examples, by their contexts; what to warn of.

    Raises:
        DataError: some do, and `allow_leakage` does not let them pass.
    """
    pairs = [item for item in items if isinstance(item, PreferencePair)]
    if not pairs or not data.holds_out:
        return []
    return check_contexts(*_named_contexts(pairs), data, config)


def check_contexts(contexts: Sequence[Row], names: Sequence[str], data: DataSets, config: RunConfig) -> list[str]:
    """Whether contexts that are trained leak into held-out pairs or examples; what to warn of.

    Args:
        contexts: distinct ones.
        names: for each of them where it comes from.
        data: what is held out.
        config: whether leaks are allowed, and what belongs together.

    Raises:
        DataError: some leak, and `allow_leakage` does not let them pass.
    """
    rows, named = list(contexts), list(names)
    sides: list[Side] = ["train" for _ in rows]
    for side in HELD_OUT:
        held = data.pairs.held.get(side)
        of_pairs, of_records = _named_contexts(held.pairs) if held is not None else ([], [])
        examples = data.of(side)
        rows += [*of_pairs, *map(_row, examples)]
        named += [f"{name} (held out for {side})" for name in of_records]
        named += [f"{example.id!r} (finetuning.{side}.dataset)" for example in examples]
        sides += [side] * (len(of_pairs) + len(examples))
    found, warnings = _ties(rows, config)
    passed = _check(named, leaks(sides, found), allowed=config.finetuning.allow_leakage)
    return [*warnings, *_passed(passed)]


def _named_contexts(pairs: Sequence[PreferencePair]) -> tuple[list[Row], list[str]]:
    """The contexts of pairs, each with the first record where it stands."""
    rows, of_pair = pair_rows(pairs)
    first = {place: pair for pair, place in reversed(list(zip(pairs, of_pair, strict=True)))}
    names = [first[place].provenance.record or repr(first[place].provenance.example_id) for place in range(len(rows))]
    return rows, names


async def _held_out(parts: Composition, settings: EvaluationConfig | None, side: Side) -> tuple[list[Example], Side, str]:
    key = f"finetuning.{side}.dataset"
    if settings is None or settings.dataset is None:
        return [], side, key
    return await parts.load_examples(settings.dataset, key), side, key


def _ties(rows: Sequence[Row], config: RunConfig) -> tuple[list[Tie], list[str]]:
    """What belongs together, and a warning where it could not be looked for and the config did not ask for it."""
    split = config.finetuning.split or SplitConfig()
    looking = config.finetuning.split is not None or find_spec("datasketch") is not None
    found = ties(rows, by=split.by if looking else "task_key", threshold=split.threshold, seed=config.finetuning.seed)
    return found, [] if looking or all(row.task is not None for row in rows) else [_NOT_LOOKED]


def _row(example: Example) -> Row:
    """Its input is what is compared: a model that saw the answer of an equal input has seen the example."""
    given = example.input
    text = given if isinstance(given, str) else json.dumps(given, sort_keys=True, ensure_ascii=False, default=repr)
    return Row(example_key(example.id), text, example.task_key)


def _part(
    loaded: _Loaded, rows: Sequence[Row], found: Sequence[Tie], split: SplitConfig, seed: int, kept: Manifest | None
) -> tuple[Manifest, list[Dropped]]:
    """Give the examples of the one dataset their sides.

    Raises:
        DataError: a side would be empty.
    """
    made = assign(
        rows, found, validation=split.validation, test=split.test, seed=seed, kept=kept.sides if kept is not None else None
    )
    for side, share in (("validation", split.validation), ("test", split.test)):
        if share and side not in made.sides:
            raise DataError(
                f"finetuning.split.{side}: {share:g} of {len(rows):,} examples leaves none, for no cluster of examples that "
                "belong together is that small; give a larger share or more examples"
            )
    if "train" not in made.sides:
        raise DataError(f"finetuning.split: nothing of the {len(rows):,} examples is left to train on; give smaller shares")
    dropped = [_bridge(loaded, place, leak) for place, leak in made.bridges]
    loaded.sides = list(made.sides)
    sides = {row.key: side for row, side in zip(rows, made.sides, strict=True) if side is not None}
    return Manifest({**(kept.sides if kept is not None else {}), **sides}), dropped


def _bridge(loaded: _Loaded, place: int, leak: Leak) -> Dropped:
    one, other = loaded.examples[leak.first].id, loaded.examples[leak.second].id
    detail = f"new, and belongs both to {one!r} and to {other!r}, which are on two sides of the split ({leak.why})"
    return Dropped("record", DropReason.BRIDGES_SPLIT, detail, loaded.examples[place].id)


def _split_note(loaded: _Loaded, split: SplitConfig, kept: Manifest | None) -> str:
    counts = ", ".join(f"{loaded.sides.count(side):,} {side}" for side in SIDES)
    how = "task key" if split.by == "task_key" else f"task key, else near-duplicates (from {split.threshold:g} alike)"
    known = sum(1 for e in loaded.examples if kept is not None and example_key(e.id) in kept.sides)
    kept_note = f"; {known:,} kept the side that they had" if known else ""
    left_out = loaded.sides.count(None)
    dropped_note = f"; {left_out:,} left out, for they belong to two sides" if left_out else ""
    return f"split of {_TRAIN_KEY} by {how}: {counts} examples{kept_note}{dropped_note}"


def _passed(leaking: Sequence[str]) -> list[str]:
    if not leaking:
        return []
    return [f"allow_leakage: {len(leaking):,} held-out examples leak, such as {'; '.join(leaking[:_SHOWN])}"]


def _check(names: Sequence[str], found: Sequence[Leak], *, allowed: bool) -> list[str]:
    """Each leak as a text.

    Raises:
        DataError: there are some, and they are not allowed.
    """
    named = [f"{names[leak.first]} and {names[leak.second]}: {leak.why}" for leak in found]
    if named and not allowed:
        more = [f"... and {len(named) - _SHOWN:,} more"] if len(named) > _SHOWN else []
        lines = "\n  ".join([*named[:_SHOWN], *more])
        raise DataError(
            f"{len(named):,} held-out examples leak, so that what is measured on them is not held out:\n  {lines}\n"
            "remove them from one side; where texts look alike that are different tasks, give the rows a task_key; or set "
            "finetuning.allow_leakage: true, which the report will say"
        )
    return named


def _clusters(loaded: _Loaded, rows: Sequence[Row], found: Sequence[Tie]) -> dict[Side, dict[str, str]]:
    def entries(side: Side) -> Iterator[tuple[str, str]]:
        for place, head in enumerate(heads):
            if loaded.sides[place] == side:
                yield rows[place].key, rows[head].task or rows[head].key

    heads = clusters(len(rows), found)
    return {side: dict(entries(side)) for side in SIDES}
