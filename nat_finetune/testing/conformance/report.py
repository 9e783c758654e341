"""Checks of one component, all of them run, and every broken promise told at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from nat_finetune.errors import NatFinetuneError, Stage, StageError, boundary

T = TypeVar("T")
Check = Callable[[T], Iterable[str]]
"""What is wrong with a component, a sentence each."""


class ConformanceError(AssertionError):
    """A component breaks what its interface promises; `problems` has a line for each broken promise."""

    def __init__(self, about: str, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join([f"{about} does not conform:", *(f"  {problem}" for problem in problems)]))


def examine(about: str, subject: T, checks: Mapping[str, Check[T]]) -> list[str]:
    """Run all checks; returns the promises that were looked at.

    Raises:
        ConformanceError: a promise is broken; names each.
    """
    problems: list[str] = []
    for promise, check in checks.items():
        try:
            with boundary(Stage.WORKFLOW):
                problems += [f"{promise}: {found}" for found in check(subject)]
        except StageError as error:
            problems.append(f"{promise}: it raised {error.error_type}: {error}")
        except NatFinetuneError as error:
            problems.append(f"{promise}: it raised {type(error).__name__}: {error}")
    if problems:
        raise ConformanceError(about, problems)
    return list(checks)
