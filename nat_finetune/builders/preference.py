"""`preference_dataset_builder`: a file of judgments to preference pairs; the workflow is not run to train."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import chain, islice
from typing import Literal

from pydantic import Field, model_validator

from nat_finetune.config.component import EvalDatasetBaseConfig, Section, Text, TrajectoryBuilderConfig
from nat_finetune.config.schema import AnyDataset
from nat_finetune.data.pairs import PairRules
from nat_finetune.data.preferences.columns import ChosenColumns, LabelledColumns, mapped
from nat_finetune.data.preferences.detect import LOOK_AT, detect, format_named, require_columns
from nat_finetune.data.preferences.formats import Format
from nat_finetune.data.preferences.judgment import Judgment
from nat_finetune.data.preferences.pairing import SeveralCounts, SeveralMessages, judgment_pairs
from nat_finetune.errors import DataError
from nat_finetune.interfaces import Builder, RecordBuilder
from nat_finetune.registry import register_trajectory_builder
from nat_finetune.types import Dropped, DropReason, Item, PreferencePair, Provenance, Record

SHOWN = 1000
"""Bad records that an error names one by one; the rest is counted."""


class ColumnsConfig(Section):
    """Which columns of a table hold what: either `chosen` and `rejected`, or `first`, `second` and `label`."""

    context: Text
    chosen: Text | None = None
    rejected: Text | None = None
    chosen_score: Text | None = None
    rejected_score: Text | None = None
    first: Text | None = None
    second: Text | None = None
    label: Text | None = None
    """The column that says which of `first` and `second` is preferred."""
    prefers_first: list[str | int] = Field([])
    """Values of `label`, compared as texts."""
    prefers_second: list[str | int] = Field([])
    ties: list[str | int] = Field([])

    @model_validator(mode="after")
    def _one_way(self) -> ColumnsConfig:
        names = ("first", "second", "label", "prefers_first", "prefers_second", "ties")
        missing = [name for name in names[:5] if not getattr(self, name)]
        if self.chosen is not None and self.rejected is not None:
            ignored = [name for name in names if name in self.model_fields_set]
            if ignored:
                raise ValueError(f"{', '.join(ignored)} would be ignored: chosen and rejected are named")
            if (self.chosen_score is None) != (self.rejected_score is None):
                raise ValueError("chosen_score and rejected_score go together")
        elif self.chosen is not None or self.rejected is not None or len(missing) == 5:
            raise ValueError("name chosen and rejected, or first, second, label, prefers_first and prefers_second")
        elif missing:
            raise ValueError(f"{' and '.join(missing)} missing: first, second, label and its values go together")
        elif self.chosen_score is not None or self.rejected_score is not None:
            raise ValueError("chosen_score and rejected_score would be ignored: the label says which one is preferred")
        twice = [v for v, n in Counter(map(str, [*self.prefers_first, *self.prefers_second, *self.ties])).items() if n > 1]
        if twice:
            raise ValueError(f"a value of the label means one thing, found twice: {', '.join(twice)}")
        return self

    def columns(self) -> ChosenColumns | LabelledColumns:
        """The columns by their meaning."""
        if self.chosen is not None and self.rejected is not None:
            return ChosenColumns(self.context, self.chosen, self.rejected, self.chosen_score, self.rejected_score)
        values = (tuple(map(str, found)) for found in (self.prefers_first, self.prefers_second, self.ties))
        return LabelledColumns(self.context, self.first or "", self.second or "", self.label or "", *values)


class PreferenceDatasetBuilderConfig(TrajectoryBuilderConfig, name="preference_dataset_builder"):
    """Preference pairs from a file of judgments, such as reviewers' labels."""

    makes = "pair"

    dataset: AnyDataset
    """The file of the records: `jsonl`, `json`, `csv` or `parquet`."""
    format: Literal["auto", "nemo-rl", "trl", "openai", "scored", "nemo-customizer"] = "auto"
    """What the records look like (docs/config.md); `auto`: what the first 100 of them show."""
    columns: ColumnsConfig | None = None
    """In place of `format`: which columns of any table hold context, completions and preference."""
    exhaustive_pairs: bool = True
    """All pairs of a record with more than two completions; false: the best against the worst."""
    min_score_diff: float = Field(0.0, ge=0)
    """Least difference of scores, where the records have scores; ties are never pairs."""
    max_pairs_per_record: int | None = Field(None, ge=1)
    """Keep the pairs with the largest differences."""
    several_messages: SeveralMessages = "refuse"
    """A completion of several messages is a bad record; `first_difference`: the first message in which the completions differ
    becomes one pair, what all of them say before it goes into the context."""
    on_bad_record: Literal["fail", "skip"] = "fail"
    """Records that can't be understood end the run, all of them named; `skip`: they are left out and counted."""

    @property
    def generations(self) -> int:
        """None: it needs no rollouts."""
        return 0

    def record_dataset(self) -> EvalDatasetBaseConfig | None:
        """The dataset whose records it trains on."""
        return self.dataset

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> PreferenceDatasetBuilderConfig:
        if self.columns is not None and "format" in self.model_fields_set:
            raise ValueError("format would be ignored: columns says what the records look like")
        if "min_score_diff" in self.model_fields_set and self.format in ("nemo-rl", "openai", "nemo-customizer"):
            raise ValueError(f"min_score_diff would be ignored: records of format {self.format} have no scores")
        return self


class PreferenceDatasetBuilder:
    """Implements `interfaces.RecordBuilder`."""

    def __init__(self, config: PreferenceDatasetBuilderConfig) -> None:
        self._config = config
        self._rules = PairRules(
            exhaustive=config.exhaustive_pairs,
            min_score_diff=config.min_score_diff,
            max_pairs_per_turn=config.max_pairs_per_record,
        )
        self._format: Format | None = None
        self._several = SeveralCounts()

    def build(self, records: Iterable[Record]) -> Iterator[Item | Dropped]:
        """Pairs, and everything that was left out with its reason; the records are read as a stream.

        Raises:
            DataError: the format is not clear, there are no records, or some are bad and `on_bad_record` is `fail`.
        """
        stream = iter(records)
        first = list(islice(stream, LOOK_AT))
        if not first:
            raise DataError("the dataset has no records")
        self._format = self._format_of(first)
        self._several = SeveralCounts()
        bad, read = 0, 0
        shown: list[str] = []
        for record in chain(first, stream):
            read += 1
            try:
                yield from self._pairs(record, self._format)
            except _BadRecord as error:
                bad += 1
                text = f"{record.place}: {error}"
                if self._config.on_bad_record == "skip":
                    yield Dropped("record", DropReason.BAD_RECORD, text, record.id)
                elif len(shown) < SHOWN:
                    shown.append(text)
        if shown:
            raise DataError(_message(self._format, shown, bad, read))

    def _format_of(self, first: list[Record]) -> Format:
        if self._config.columns is not None:
            columns = self._config.columns.columns()
            require_columns(columns.names, first)
            return mapped(columns)
        return detect(first) if self._config.format == "auto" else format_named(self._config.format)

    def notes(self) -> list[str]:
        """How the records were read."""
        if self._format is None:
            return []
        looked = self._config.format == "auto" and self._config.columns is None
        chosen = " (found by looking at the first ones)" if looked else ""
        notes = [f"the records were read as {self._format.name}{chosen}: {self._format.signature}"]
        if self._several.records:
            notes.append(
                f"{self._several.records:,} records have completions of several messages: of each the first message in which "
                f"they differ was compared, {self._several.later_messages:,} later ones of the assistant were left out"
            )
        return notes

    def _pairs(self, record: Record, form: Format) -> Iterator[PreferencePair | Dropped]:
        """What one record gives.

        Raises:
            _BadRecord: it can't be understood.
        """
        if record.problem is not None:
            raise _BadRecord(record.problem)
        try:
            judgment = form.read(record.values)
            self._check_scores(judgment)
            where = Provenance(
                example_id=record.place if record.id is None else record.id,
                record=record.place,
                task_key=record.task_key,
                metadata=judgment.extra,
            )
            made = list(judgment_pairs(judgment, self._rules, where, self._config.several_messages, self._several))
        except DataError as error:
            raise _BadRecord(str(error)) from error
        yield from made

    def _check_scores(self, judgment: Judgment) -> None:
        if judgment.ranked and self._config.min_score_diff > 0:
            raise DataError("has no scores, which `min_score_diff` compares")


class _BadRecord(Exception):
    """A record that can't be understood, and why."""


def _message(form: Format, shown: list[str], bad: int, read: int) -> str:
    lines = [f"{bad:,} of {read:,} records can't be used as {form.name} ({form.signature}):"]
    lines += [f"  {text}" for text in shown]
    if bad > len(shown):
        lines.append(f"  and {bad - len(shown):,} more")
    lines.append("correct them, or leave them out with `on_bad_record: skip`")
    return "\n".join(lines)


@register_trajectory_builder(config_type=PreferenceDatasetBuilderConfig)
async def preference_dataset_builder(config: PreferenceDatasetBuilderConfig, builder: Builder) -> AsyncIterator[RecordBuilder]:
    """Make the builder."""
    yield PreferenceDatasetBuilder(config)
