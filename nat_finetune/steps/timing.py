"""How long the stages of a run take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Adds the seconds of each stage to those of the run, and to those of the step."""

    def __init__(self, run: dict[str, float]) -> None:
        self._run = run
        self.step: dict[str, float] = {}
        """By stage, since it was last cleared."""

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Time what is done inside."""
        began = time.monotonic()
        try:
            yield
        finally:
            seconds = time.monotonic() - began
            for record in (self._run, self.step):
                record[stage] = record.get(stage, 0.0) + seconds
