"""How data is exported, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nat_finetune.data.exports.formats import ExportFormat, ExportKind
from nat_finetune.data.exports.index import PairWeights
from nat_finetune.data.splits import SplitBy
from nat_finetune.errors import ConfigError

NEMO_RL_BATCH = 128
"""Pairs of NeMo RL's global batch where its config says nothing else; it trains whole batches only."""


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """How data is exported."""

    form: ExportFormat
    items: ExportKind | None = None
    """None: what the trajectory builder makes."""
    validation_share: float | None = None
    """Of the rows; 0: no validation file. None: a tenth, or what the manifest says."""
    manifest: Path | None = None
    """Which example is on which side; those of the test set are in neither file."""
    split_by: SplitBy | None = None
    pair_weights: PairWeights = "sample"
    on_unwritable: Literal["fail", "skip"] = "fail"
    task_name: str | None = None
    global_batch_size: int | None = None

    @property
    def share(self) -> float:
        """Of the rows that validation gets at most."""
        return 0.1 if self.validation_share is None else self.validation_share

    def check(self) -> None:
        """Refuse what the format or another option would ignore.

        Raises:
            ConfigError: names it.
        """
        for name, value in (("--task-name", self.task_name), ("--global-batch-size", self.global_batch_size)):
            if value is not None and self.form != "nemo-rl":
                raise ConfigError(f"{name} would be ignored: it is for --format nemo-rl")
        if self.manifest is not None and (self.validation_share is not None or self.split_by is not None):
            raise ConfigError("--validation-share and --split-by would be ignored: --manifest says which example is where")


@dataclass(frozen=True, slots=True)
class DataExport:
    """What was written."""

    folder: Path
    form: ExportFormat
    kind: ExportKind
    rows: Mapping[str, int]
    """By file, relative to the folder."""
    dropped: Mapping[str, int]
    """By reason."""
    notes: tuple[str, ...]
