"""Options that several commands share."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

import typer

Override = Annotated[
    list[str] | None,
    typer.Option("-o", "--override", help="path.to.key=value, may be repeated; typed and checked like the file itself"),
]
Seed = Annotated[int | None, typer.Option("--seed", help="in place of finetuning.seed", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="JSON on standard output, for machines")]
Checkpoint = Annotated[
    Literal["best", "last"], typer.Option(help="of a run: the one that its validation set chose, if any, or the last one")
]
RunFolder = Annotated[Path, typer.Argument(help="a run folder", metavar="RUN")]
Locked = Annotated[bool, typer.Option("--locked", help="refuse whatever is not as CONFIG.lock.yml has it")]


def finite(value: float | None) -> float | None:
    """Callback of a number: NaN passes every range check, and each comparison with it later says no."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"expected a finite number, found {value}")
    return value
