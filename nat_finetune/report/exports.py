"""What is said of exported files."""

from __future__ import annotations

from collections.abc import Mapping

from nat_finetune.data.exports.formats import ExportKind
from nat_finetune.data.exports.index import Kept
from nat_finetune.data.exports.options import DataExport, ExportOptions
from nat_finetune.data.splits import Side
from nat_finetune.types import DropReason


def weight_notes(kept: Kept, kind: ExportKind, seed: int) -> list[str]:
    """How rows stand for what weighs more or less than one."""
    notes = []
    if kept.repeated and kind == "pairs":
        notes.append(f"{kept.repeated:,} rows say what another one says: each is a judgment of its own, and weighs as one")
    if kept.contradictions:
        notes.append(f"{kept.contradictions:,} couples of answers are preferred both ways in one context")
    others = kept.dropped[DropReason.ONE_OF_ITS_SET]
    if others and kind == "pairs":
        notes.append(
            f"pair_weighting: set: the file has no weights, so one pair of each candidate set was drawn (seed {seed}), and "
            f"{others:,} others are left out"
        )
    elif others:
        notes.append("of each candidate set the best completion is written")
    return notes


def split_note(options: ExportOptions, seed: int) -> str:
    """How rows came to their files."""
    if options.manifest is not None:
        return f"which example is where is said by {options.manifest}"
    share = options.share
    return f"validation: up to {share:g} of the rows, whole clusters, seed {seed}" if share else "there is no validation file"


def card(made: DataExport, files: Mapping[Side, str]) -> str:
    """A description for people; its head tells Hugging Face's `load_dataset` which file is which split."""
    head = ["---", "configs:", "- config_name: default", "  data_files:"]
    head += [line for side, name in files.items() for line in (f"  - split: {side}", f"    path: {name}")]
    lines = [*head, "---", "", f"# {made.kind.capitalize()} for {made.form}", "", "Written by `nat-finetune export-data`.", ""]
    lines += [f"- {name}: {count:,} rows" for name, count in made.rows.items()]
    lines += [f"- left out, {reason}: {count:,}" for reason, count in made.dropped.items()]
    lines += [f"- {note}" for note in made.notes]
    return "\n".join(lines) + "\n"
