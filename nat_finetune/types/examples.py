"""What is asked: examples, records of a dataset, and messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Message = Mapping[str, Any]
"""One chat message in OpenAI's form: `role`, `content`, and where present `tool_calls`, `tool_call_id`, `name`."""


ExampleId = str | int
"""Ids keep their type: 1 is not "1", "007" is not 7."""


@dataclass(frozen=True, slots=True)
class Example:
    """One row of a dataset: the task that is given to the agent."""

    id: ExampleId
    """Unique in its dataset, with its type."""
    input: Any
    """What the workflow gets."""
    target: Any = None
    """The known answer, None where there is none."""
    task_key: str | None = None
    """What makes two examples the same task; intervals and splits treat equal keys as one cluster. None: the id."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Every other column of the row."""


@dataclass(frozen=True, slots=True)
class Record:
    """One row of a dataset as it was written: what a builder that trains on records reads."""

    place: str
    """File and line, `labels.jsonl:12`."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """The columns, without those of id and task key."""
    id: ExampleId | None = None
    """None where the row has none."""
    task_key: str | None = None
    problem: str | None = None
    """Why the row can't be read; None: it could."""


def as_messages(context: str | Sequence[Message]) -> tuple[Message, ...]:
    """The normal form of a context: a text is one user message."""
    return ({"role": "user", "content": context},) if isinstance(context, str) else tuple(context)
