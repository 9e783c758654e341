"""Which format a file has, from its first records."""

from __future__ import annotations

from collections.abc import Sequence

from nat_finetune.data.preferences.formats import FORMATS, Format
from nat_finetune.errors import DataError
from nat_finetune.types import Record

LOOK_AT = 100
"""Records that are looked at."""


def format_named(name: str) -> Format:
    """A format by its name."""
    return next(form for form in FORMATS if form.name == name)


def require_columns(names: Sequence[str], records: Sequence[Record]) -> None:
    """Refuse columns that none of the first records has: every record would be a bad one.

    Raises:
        DataError: names them, and the columns that there are.
    """
    found = list(dict.fromkeys(name for record in records if record.problem is None for name in record.values))
    missing = [name for name in names if name not in found]
    if missing and found:
        raise DataError(f"no record has the column {', '.join(map(repr, missing))}, found {', '.join(map(repr, found))}")


def detect(records: Sequence[Record]) -> Format:
    """The one format that the first records have.

    Raises:
        DataError: they have none, or more than one; names the candidates and where they were seen.
    """
    seen: dict[str, str] = {}
    for record in records:
        for form in FORMATS:
            if form.matches(record.values):
                seen.setdefault(form.name, record.place)
    if len(seen) == 1:
        return format_named(next(iter(seen)))
    if seen:
        candidates = ", ".join(f"{name} ({place})" for name, place in seen.items())
        raise DataError(f"the records fit more than one format: {candidates}; set `format:` to the one that they have")
    readable = [record for record in records if record.problem is None]
    if not readable:
        raise DataError(f"no record can be read: {records[0].place}: {records[0].problem}")
    columns = ", ".join(dict.fromkeys(name for record in readable for name in record.values)) or "none"
    kto = any({"completion", "label"} <= record.values.keys() for record in readable)
    hint = "; completions with a label of their own (TRL's unpaired preferences) are no preferences" if kto else ""
    raise DataError(
        f"{readable[0].place}: the format of the records is not known: found the columns {columns}{hint}; known are "
        + "; ".join(f"{form.name} ({form.signature})" for form in FORMATS)
        + "; name the columns with `columns:` if the file has others"
    )
