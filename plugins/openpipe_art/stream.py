"""The stream of an update's metrics: kept as it comes, so that another process can read it, and told in our words."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Line = Mapping[str, float]

_NAMES: Mapping[str, tuple[str, ...]] = {
    "loss": ("loss/train", "loss", "policy_loss"),
    "grad_norm": ("loss/grad_norm", "grad_norm"),
    "entropy": ("loss/entropy", "entropy"),
    "kl": ("loss/kl_policy_ref", "loss/kl_div", "kl_div"),
    "learning_rate": ("loss/learning_rate", "learning_rate"),
}
"""Our names of metrics, and those of both generations."""
_STEPS = ("data/step_num_gradient_steps", "num_gradient_steps")
_TOKENS = "data/step_trainer_tokens"


class StreamFile:
    """`openpipe_art/<step>.jsonl` of a run folder: a line for each line of the stream; it exists once a request was sent."""

    def __init__(self, folder: Path | None, step: int) -> None:
        self._path = None if folder is None else folder / "openpipe_art" / f"{step:05d}.jsonl"

    def begin(self) -> None:
        """Empty, before the request is sent."""
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text("", encoding="utf-8")

    def add(self, line: Line) -> None:
        """Keep a line."""
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(dict(line)) + "\n")

    def lines(self) -> list[Line] | None:
        """What came; None: nothing was sent by a process that kept it. A last line that is cut is left out."""
        if self._path is None or not self._path.exists():
            return None
        found = []
        for text in self._path.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(text))
            except ValueError:
                break
        return found


def planned_steps(lines: Sequence[Line]) -> int | None:
    """Optimiser steps that the server says the update has; None where it does not."""
    named = [int(line[key]) for line in lines[:1] for key in _STEPS if key in line]
    return named[0] if named else None


def steps_done(lines: Sequence[Line]) -> int:
    """Optimiser steps that the stream tells of. A line about none is 0.5.x's way to say that there was nothing to train on."""
    return sum(1 for line in lines if planned_steps([line]) != 0)


def trained_tokens(lines: Sequence[Line]) -> int | None:
    """Tokens that the server trained on; None where it does not say (0.4.11)."""
    named = [line[_TOKENS] for line in lines if _TOKENS in line]
    return int(named[-1]) if named else None


def curve(lines: Sequence[Line]) -> tuple[dict[str, float], ...]:
    """Per optimiser step, under our names."""
    return tuple(_ours(line) for line in lines if planned_steps([line]) != 0)


def means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of each metric over the rows that have it."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row[name] for row in rows if name in row] for name in names}
    return {name: math.fsum(values) / len(values) for name, values in columns.items()}


def shown(line: Line) -> str:
    """A line of the stream as text."""
    return ", ".join(f"{name} {value:.6g}" for name, value in line.items())


def _ours(line: Mapping[str, Any]) -> dict[str, float]:
    made = {}
    for name, theirs in _NAMES.items():
        values = [float(line[key]) for key in theirs if key in line and math.isfinite(line[key])]
        if values:
            made[name] = values[0]
    return made
