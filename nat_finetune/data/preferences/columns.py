"""Records of any table: the config says which columns hold what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nat_finetune.data.preferences.formats import Format
from nat_finetune.data.preferences.judgment import Answer, Judgment, as_completion, as_context, column, preferred, rest
from nat_finetune.errors import DataError

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ChosenColumns:
    """One column holds the preferred completion, another the rejected one."""

    context: str
    chosen: str
    rejected: str
    chosen_score: str | None = None
    rejected_score: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that are read."""
        scores = (self.chosen_score, self.rejected_score)
        return (self.context, self.chosen, self.rejected, *(name for name in scores if name is not None))

    def read(self, values: Values) -> Judgment:
        """What a record says.

        Raises:
            DataError: a column is missing or holds something else.
        """
        context = as_context(column(values, self.context), self.context)
        chosen = as_completion(column(values, self.chosen), self.chosen)
        rejected = as_completion(column(values, self.rejected), self.rejected)
        extra = rest(values, *self.names)
        if self.chosen_score is None or self.rejected_score is None:
            return preferred(context, chosen, rejected, extra)
        high, low = (_score(values, name) for name in (self.chosen_score, self.rejected_score))
        if high is not None and low is not None and high < low:
            raise DataError(f"the chosen side scores {high}, less than the rejected one's {low}")
        return Judgment(context, (Answer(chosen, high, 0), Answer(rejected, low, 1)), ranked=False, extra=extra)


@dataclass(frozen=True, slots=True)
class LabelledColumns:
    """Two columns hold completions, a third says which one is preferred; its values are compared as texts."""

    context: str
    first: str
    second: str
    label: str
    prefers_first: tuple[str, ...]
    prefers_second: tuple[str, ...]
    ties: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that are read."""
        return (self.context, self.first, self.second, self.label)

    def read(self, values: Values) -> Judgment:
        """What a record says; a tie is two completions with equal scores.

        Raises:
            DataError: a column is missing or holds something else, or the label is none that the config names.
        """
        context = as_context(column(values, self.context), self.context)
        answers = [as_completion(column(values, name), name) for name in (self.first, self.second)]
        label = str(column(values, self.label))
        known = {**dict.fromkeys(self.prefers_first, (1.0, 0.0)), **dict.fromkeys(self.prefers_second, (0.0, 1.0))}
        known |= dict.fromkeys(self.ties, (0.0, 0.0))
        if label not in known:
            raise DataError(f"the label {self.label!r} is {label!r}, expected one of {', '.join(map(repr, known))}")
        scored = tuple(Answer(text, known[label][at], at) for at, text in enumerate(answers))
        return Judgment(context, scored, ranked=True, extra=rest(values, *self.names))


def mapped(columns: ChosenColumns | LabelledColumns) -> Format:
    """The format of a table with these columns."""
    signature = "columns " + ", ".join(columns.names)
    return Format("columns", signature, lambda values: all(name in values for name in columns.names), columns.read)


def _score(values: Values, name: str) -> Any:
    """A score; a CSV cell is read as a number, an empty one as unknown."""
    value = values.get(name)
    if not isinstance(value, str):
        return value
    try:
        return float(value) if value.strip() else None
    except ValueError:
        raise DataError(f"{name!r} is {value!r}, expected a number") from None
