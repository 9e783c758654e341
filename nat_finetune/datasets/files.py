"""`_type: jsonl`, `json` and `csv`: examples from a file.

NAT's keys, without its coercions: ids and values keep their types, and what NAT drops or merges silently (rows without an id,
equal ids, blank questions, filters on columns that there are not) is an error that names the line.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pydantic import Field

from nat_finetune.config.component import EvalDatasetBaseConfig, FilePath, Section, Text
from nat_finetune.config.problems import nearest
from nat_finetune.datasets.json_list import json_array
from nat_finetune.datasets.rows import BadRow, Counts, Reader, Row, comma_separated, jsonl
from nat_finetune.errors import DataError
from nat_finetune.interfaces import Builder, DatasetLoader
from nat_finetune.registry import register_dataset_loader
from nat_finetune.types import Example, ExampleId, Record

Patterns = dict[str, list[str | int | float]]


class StructureConfig(Section):
    """Which columns are the question and the answer."""

    disable: bool = False
    """The whole row, as a JSON text, is the input; there is no target."""
    question_key: Text = "question"
    answer_key: Text = "answer"
    """A row without this column, or with null or an empty CSV cell in it, has no target."""


class FieldFilterConfig(Section):
    """Shell patterns (`*`, `?`, `[...]`) by column, compared with the value as a text."""

    field: Patterns = Field(default_factory=dict)


class FilterConfig(Section):
    """Which rows to use."""

    allowlist: FieldFilterConfig | None = None
    """A row is used if each of these columns has one of its patterns."""
    denylist: FieldFilterConfig | None = None
    """A row is left out if any of these columns has one of its patterns."""


class FileDatasetConfig(EvalDatasetBaseConfig):
    """What the file formats have in common."""

    gives_records = True

    file_path: FilePath
    """Relative to the config file that names it."""
    id_key: Text = "id"
    """Column of the id: a text or a whole number, once in the file."""
    task_key: Text = "task_key"
    """Column of what makes two examples the same task; used where it is present."""
    structure: StructureConfig = StructureConfig()
    filter: FilterConfig = FilterConfig()


class JSONLDatasetConfig(FileDatasetConfig, name="jsonl"):
    """Examples from a file with one JSON object a line."""


class JSONDatasetConfig(FileDatasetConfig, name="json"):
    """Examples from a JSON list of objects."""


class CSVDatasetConfig(FileDatasetConfig, name="csv"):
    """Examples from a CSV file with a header; every value is a text."""


class FileDataset:
    """Reads the examples of one file as a stream; `counts` says what was met."""

    def __init__(self, config: FileDatasetConfig, reader: Reader) -> None:
        self._config = config
        self._reader = reader
        self._path = Path(config.file_path)
        self.counts = Counts()

    def load(self) -> Iterator[Example]:
        """All examples that pass the filter, in the file's order.

        Raises:
            DataError: the file is missing or malformed, a row has no id or a blank question, or ids occur twice.
        """
        self.counts = counts = Counts()
        lines: dict[tuple[type, Any], int] = {}
        repeated: dict[tuple[type, Any], list[int]] = {}
        columns: dict[str, None] = {}
        for row in self._reader(self._path, counts):
            if isinstance(row, BadRow):
                raise row.error(self._path)
            counts.rows += 1
            columns |= dict.fromkeys(row.values)
            identity = self._identity(row)
            key = (type(identity), identity)
            if key in lines:
                repeated.setdefault(key, [lines[key]]).append(row.line)
            lines.setdefault(key, row.line)
            if self._passes(row):
                yield self._example(row, identity)
            else:
                counts.filtered += 1
        self._check_ids(repeated)
        self._check_columns(list(columns), "task_key")

    def records(self) -> Iterator[Record]:
        """All rows that pass the filter, as they are written; one that can't be read says why.

        Unlike examples, records need no id, and several may have the same one.

        Raises:
            DataError: the file is missing, can't be read on, or no row has a column that the config names.
        """
        self.counts = counts = Counts()
        columns: dict[str, None] = {}
        for row in self._reader(self._path, counts):
            counts.rows += 1
            place = f"{self._path.name}:{row.line}"
            if isinstance(row, BadRow):
                yield Record(place, problem=row.reason if row.column is None else f"column {row.column}: {row.reason}")
                continue
            columns |= dict.fromkeys(row.values)
            if self._passes(row):
                yield self._record(row, place)
            else:
                counts.filtered += 1
        self._check_columns(list(columns), "task_key", "id_key")

    def _record(self, row: Row, place: str) -> Record:
        config, values = self._config, dict(row.values)
        identity, task = values.pop(config.id_key, None), values.pop(config.task_key, None)
        for name, value in ((config.id_key, identity), (config.task_key, task)):
            if isinstance(value, bool) or not isinstance(value, str | int | None):
                problem = f"the column {name!r} holds {value!r}, expected a text or a whole number"
                return Record(place, values, problem=problem)
        return Record(place, values, None if identity == "" else identity, None if task in (None, "") else str(task))

    def _identity(self, row: Row) -> ExampleId:
        identity = row.values.get(self._config.id_key)
        if isinstance(identity, bool) or not isinstance(identity, str | int) or identity == "":
            expected = "a text or a whole number, to tell examples apart"
            raise self._error(row, self._column(row, self._config.id_key, expected))
        return identity

    def _example(self, row: Row, identity: ExampleId) -> Example:
        config, values = self._config, dict(row.values)
        del values[config.id_key]
        task = values.pop(config.task_key, None)
        if isinstance(task, bool) or not isinstance(task, str | int | None):
            raise self._error(row, f"the column {config.task_key!r} holds {task!r}, expected a text")
        task_key = None if task in (None, "") else str(task)
        if config.structure.disable:
            whole = json.dumps(row.values, ensure_ascii=False)
            return Example(identity, whole, None, task_key, metadata=values)
        question = values.pop(config.structure.question_key, None)
        if question is None or (isinstance(question, str) and not question.strip()):
            raise self._error(row, self._column(row, config.structure.question_key, "a question that is not blank"))
        answer = values.pop(config.structure.answer_key, None)
        if answer == "" and self._reader is comma_separated:
            answer = None
        return Example(identity, question, answer, task_key, metadata=values)

    def _column(self, row: Row, name: str, expected: str) -> str:
        if name in row.values:
            return f"the column {name!r} holds {row.values[name]!r}, expected {expected}"
        found = list(row.values)
        hint = nearest(name, found)
        return f"there is no column {name!r}, found {', '.join(found) or 'none'}" + (f" ({hint})" if hint else "")

    def _passes(self, row: Row) -> bool:
        allow, deny = self._config.filter.allowlist, self._config.filter.denylist
        if allow is not None and not all(_matches(row, name, patterns) for name, patterns in allow.field.items()):
            return False
        return deny is None or not any(_matches(row, name, patterns) for name, patterns in deny.field.items())

    def _check_ids(self, repeated: dict[tuple[type, Any], list[int]]) -> None:
        if repeated:
            shown = "; ".join(f"{key[1]!r} in lines {', '.join(map(str, at))}" for key, at in list(repeated.items())[:10])
            more = f" and {len(repeated) - 10} more" if len(repeated) > 10 else ""
            raise DataError(f"{self._path}: {len(repeated)} ids occur more than once: {shown}{more}; ids must be unique")

    def _check_columns(self, columns: list[str], *keys: str) -> None:
        """Refuse to look for a column that no row has: the filter, or what one of `keys` names, would do nothing."""
        if not columns:
            return
        lists = [part for part in (self._config.filter.allowlist, self._config.filter.denylist) if part is not None]
        wanted = [name for part in lists for name in part.field]
        named = {"task_key": self._config.task_key, "id_key": self._config.id_key}
        wanted += [named[key] for key in keys if key in self._config.model_fields_set]
        missing = [name for name in wanted if name not in columns]
        if missing:
            raise DataError(f"{self._path}: no row has the columns {', '.join(missing)}, found {', '.join(columns)}")

    def _error(self, row: Row, message: str) -> DataError:
        return DataError(f"{self._path}:{row.line}: {message}")


def _matches(row: Row, column: str, patterns: list[str | int | float]) -> bool:
    return column in row.values and any(fnmatchcase(str(row.values[column]), str(pattern)) for pattern in patterns)


@register_dataset_loader(config_type=JSONLDatasetConfig)
async def jsonl_dataset(config: JSONLDatasetConfig, builder: Builder) -> AsyncIterator[DatasetLoader]:
    """Make the loader."""
    yield FileDataset(config, jsonl)


@register_dataset_loader(config_type=JSONDatasetConfig)
async def json_dataset(config: JSONDatasetConfig, builder: Builder) -> AsyncIterator[DatasetLoader]:
    """Make the loader."""
    yield FileDataset(config, json_array)


@register_dataset_loader(config_type=CSVDatasetConfig)
async def csv_dataset(config: CSVDatasetConfig, builder: Builder) -> AsyncIterator[DatasetLoader]:
    """Make the loader."""
    yield FileDataset(config, comma_separated)
