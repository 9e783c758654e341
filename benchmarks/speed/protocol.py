"""How the driver and a side speak: a side starts, says that it is ready, and does one unit of work each time it is told to.

JSON lines on stdin and stdout. Nothing but the standard library: the peer's Python imports it too.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TextIO


@dataclass(slots=True)
class Spent:
    """Wall and CPU seconds of a part of the work; `with Spent.measured() as spent:` fills it."""

    wall: float = 0.0
    cpu: float = 0.0

    def __enter__(self) -> Self:
        self.wall, self.cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *raised: object) -> None:
        self.wall, self.cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu

    def over(self, steps: int) -> dict[str, float]:
        """For each of so many steps."""
        return {"wall": self.wall / steps, "cpu": self.cpu / steps}


def peak_gib() -> float:
    """The most memory that this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2 ** (30 if sys.platform == "darwin" else 20)


class Side:
    """The worker's end."""

    def __init__(self) -> None:
        # What libraries print must not be taken for an answer.
        self._answers: TextIO = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def ready(self, **about: Any) -> None:
        """Model loaded, everything made; `load_seconds` is since the driver started this process."""
        started = float(os.environ.get("BENCH_STARTED", "nan"))
        self._say({"ready": {"load_seconds": time.time() - started, "load_cpu": time.process_time(), **about}})

    def told(self) -> bool:
        """Wait; whether another unit is wanted."""
        return sys.stdin.readline().strip() == "go"

    def done(self, unit: dict[str, Any]) -> None:
        """Answer a unit."""
        self._say({"unit": {**unit, "peak_gib": peak_gib()}})

    def _say(self, value: Any) -> None:
        self._answers.write(json.dumps(value) + "\n")
        self._answers.flush()


@dataclass(frozen=True, slots=True)
class Job:
    """What a side is started for; handed over as a JSON file."""

    work: str
    """`dpo`, `grpo`, `agent` or `load`."""
    model: str
    """Folder."""
    mode: str
    """`lora` or `full`."""
    steps: int
    """Optimiser steps of a unit; conversations for `load` are always all."""
    units: int
    threads: int
    work_file: str
    dtype: str = "float32"
    device: str = "cpu"

    @classmethod
    def read(cls, path: str) -> Job:
        """From its file."""
        return cls(**json.loads(Path(path).read_text()))

    def data(self) -> Any:
        """The work."""
        return json.loads(Path(self.work_file).read_text())[self.work]
