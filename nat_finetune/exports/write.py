"""A run's data, or a config's, as files that another trainer loads as they are.

Items are read once, as a stream. Each becomes its row at once and waits on disk; what stays in memory of it is a handful of
digests (`data.exports.index`). When all are there it is decided which rows are written and where, and they are copied. The
folder gets its name when it is whole.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
from pydantic_core import to_json

from nat_finetune.compose import compose
from nat_finetune.config.load import LoadedConfig
from nat_finetune.config.schema import RunConfig
from nat_finetune.data.exports.formats import TAKES, ExportKind, RowWriter, dataset_info, file_names
from nat_finetune.data.exports.index import ItemIndex, Kept, digest
from nat_finetune.data.exports.options import NEMO_RL_BATCH, DataExport, ExportOptions
from nat_finetune.data.exports.sides import (
    OF_SIDE,
    TEST,
    Sides,
    drawn_sides,
    given_sides,
    joined,
    without_shared,
)
from nat_finetune.data.manifest import Manifest, read_manifest
from nat_finetune.data.selection import SelectionRules
from nat_finetune.data.splits import Side
from nat_finetune.errors import ConfigError, DataError, OutputError
from nat_finetune.exports.sources import Made, Source, kind_of, open_source
from nat_finetune.registry import Registry
from nat_finetune.report.exports import card, split_note, weight_notes
from nat_finetune.runstore import RunStore
from nat_finetune.types import Dropped, DropReason

_SHOWN = 20
_FILES: tuple[Side, ...] = ("train", "validation")
_CARD = "README.md"


@dataclass(slots=True)
class _Spool:
    """All rows, in order, and what is known of them."""

    writer: RowWriter
    index: ItemIndex = field(default_factory=ItemIndex)
    dropped: Counter[DropReason] = field(default_factory=Counter)
    unwritable: list[str] = field(default_factory=list)
    pairs: bool = False
    """Whether the items are pairs, whatever of them is written."""

    def fill(self, source: Source, file: BinaryIO) -> None:
        for made in source.stream():
            if isinstance(made, Dropped):
                self.dropped[made.reason] += 1
            else:
                self._add(made, file)

    def _add(self, made: Made, file: BinaryIO) -> None:
        try:
            line = self.writer.line(made.item)
        except DataError as error:
            self.dropped[DropReason.NOT_IN_FORMAT] += 1
            if len(self.unwritable) < _SHOWN:
                self.unwritable.append(f"{made.place}: {error}")
            return
        file.write(line + b"\n")
        self.pairs |= made.item.rejected is not None
        self.index.add(
            made.item.context,
            str(made.item.completion.get("content")),
            "" if made.item.rejected is None else str(made.item.rejected.get("content")),
            cluster=made.cluster,
            set_id=made.set_id,
            judged=made.judged,
            weight=made.weight,
        )


async def export_data(
    loaded: LoadedConfig, registry: Registry, run: Path | None, output: Path, options: ExportOptions
) -> DataExport:
    """Write the items that a run, or a config with records, trains on as another trainer's training and validation file.

    Args:
        loaded: the config; of the run, where there is one.
        registry: the components.
        run: a run folder whose rollouts are used; None: the config's records.
        output: a folder that does not exist yet.
        options: format, items, split and weights.

    Raises:
        ConfigError: options, config and format do not fit together.
        DataError: there is nothing to export, a side would be empty, or rows can't be written in this format.
        OutputError: the folder exists, or can't be written.
    """
    options.check()
    config = loaded.config
    kind = kind_of(config, options.items, from_run=run is not None)
    if options.form not in TAKES[kind]:
        raise ConfigError(f"--format {options.form} does not hold {kind}; these do: {', '.join(TAKES[kind])}")
    store = RunStore.open(run) if run is not None else None
    manifest = read_manifest(options.manifest) if options.manifest is not None else None
    async with compose(config, registry) as parts:
        with ExitStack() as held:
            if store is not None:
                held.enter_context(store.locked())
            folder = held.enter_context(_whole(output))
            source = await open_source(config, parts, store, kind, by=options.split_by, manifest=manifest)
            return _export(folder, output, source, kind, manifest, config, options)


def _export(
    folder: Path,
    output: Path,
    source: Source,
    kind: ExportKind,
    manifest: Manifest | None,
    config: RunConfig,
    options: ExportOptions,
) -> DataExport:
    spool = _Spool(RowWriter(options.form, kind, task_name=options.task_name))
    path = folder / ".spool"
    with path.open("wb") as file:
        spool.fill(source, file)
    _require_writable(spool, options)
    seed = config.finetuning.seed
    kept = _kept(spool, kind, _rules(config), options, seed)
    dropped = spool.dropped + kept.dropped
    sides = _sides(spool.index, source, kept, manifest, options, seed, dropped)
    counts = {side: int((sides == OF_SIDE[side]).sum()) for side in _FILES}
    _require_rows(counts, options)
    names = dict(zip(_FILES, file_names(options.form), strict=True))
    files = {side: names[side] for side in _FILES if counts[side]}
    _copy(path, folder, spool.writer, sides, files)
    path.unlink()
    notes = [*source.notes(), *weight_notes(kept, kind, seed), split_note(options, seed)]
    made = DataExport(
        output,
        options.form,
        kind,
        rows={files[side]: counts[side] for side in files},
        dropped={reason.value: count for reason, count in sorted(dropped.items()) if count},
        notes=tuple(notes),
    )
    if options.form == "sharegpt":
        (folder / "dataset_info.json").write_bytes(to_json(dataset_info(kind, files), indent=2) + b"\n")
    (folder / _CARD).write_text(card(made, files), encoding="utf-8")
    return made


def _rules(config: RunConfig) -> SelectionRules:
    trainer = config.trainers.get(config.finetuning.trainer or "")
    return SelectionRules() if trainer is None else trainer.selection_rules()


def _kept(spool: _Spool, kind: ExportKind, rules: SelectionRules, options: ExportOptions, seed: int) -> Kept:
    """The items that are written.

    Raises:
        DataError: there are none, or they weigh differently.
    """
    index = spool.index
    if not spool.pairs:
        return Kept(np.ones(len(index), np.bool_), Counter(), "pair", sets=0, repeated=0, contradictions=0)
    kept = index.select(rules, options.pair_weights, seed=seed, best=kind == "demonstrations")
    if kind == "demonstrations":
        once = index.first_of_each(kept.mask)
        repeated = int(kept.mask.sum()) - int(once.sum())
        kept = replace(kept, mask=once, dropped=kept.dropped + Counter({DropReason.DUPLICATE: repeated}))
    return kept


def _sides(
    index: ItemIndex,
    source: Source,
    kept: Kept,
    manifest: Manifest | None,
    options: ExportOptions,
    seed: int,
    dropped: Counter[DropReason],
) -> Sides:
    """The side of every row, and in `dropped` those that are on none.

    Raises:
        DataError: contexts leak into held-out examples, or the manifest does not know an example.
    """
    cluster, text, also = index.column("cluster"), index.column("text"), source.joined()
    if manifest is not None:
        given = {digest(f"task {key}"): OF_SIDE[side] for key, side in manifest.sides.items()}
        sides, unknown = given_sides(cluster, kept.mask, given)
        if unknown:
            raise DataError(
                f"{options.manifest} does not say of {unknown:,} of {int(kept.mask.sum()):,} rows on which side they are"
            )
    else:
        clusters = joined(cluster, text, also) if source.contexts_join else cluster
        sides = drawn_sides(clusters, kept.mask, options.share, seed=seed)
    dropped[DropReason.BRIDGES_SPLIT] += without_shared(sides, text)
    dropped[DropReason.HELD_OUT] += int((sides == TEST).sum())
    return sides


def _require_writable(spool: _Spool, options: ExportOptions) -> None:
    """Refuse a file that lacks something.

    Raises:
        DataError: names what can't be written, or says that nothing is there.
    """
    count = spool.dropped[DropReason.NOT_IN_FORMAT]
    if count and options.on_unwritable == "fail":
        more = [f"and {count - len(spool.unwritable):,} more"] if count > len(spool.unwritable) else []
        lines = "\n  ".join([*spool.unwritable, *more])
        raise DataError(
            f"{count:,} items can't be written as {options.form}:\n  {lines}\n"
            "leave them out with --on-unwritable skip, or choose another format"
        )
    if not len(spool.index):
        reasons = ", ".join(f"{count:,} {reason.value}" for reason, count in spool.dropped.most_common()) or "nothing"
        raise DataError(f"there is nothing to export; left out: {reasons}")


def _require_rows(counts: Mapping[Side, int], options: ExportOptions) -> None:
    train, batch = counts["train"], options.global_batch_size or NEMO_RL_BATCH
    if not train:
        raise DataError("no row is left to train on; give a smaller --validation-share, or another --manifest")
    if not counts["validation"] and options.manifest is None and options.share:
        raise DataError(
            f"--validation-share {options.share:g} leaves no validation row: no cluster of rows that belong together is that "
            "small; give a larger share, or 0 for no validation file"
        )
    if options.form == "nemo-rl" and train < batch:
        raise DataError(
            f"{train:,} pairs to train on are fewer than NeMo RL's global batch of {batch:,}: it trains whole batches only, so "
            f"it would do no step and end without an error; lower its policy.train_global_batch_size to {train:,} or less, and "
            "give the same number as --global-batch-size"
        )


def _copy(spool: Path, folder: Path, writer: RowWriter, sides: Sides, files: Mapping[Side, str]) -> None:
    with ExitStack() as stack:
        targets: dict[int, BinaryIO] = {}
        for side, name in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            targets[OF_SIDE[side]] = stack.enter_context((folder / name).open("wb"))
        lines = stack.enter_context(spool.open("rb"))
        for line, side in zip(lines, sides, strict=True):
            if side in targets:
                targets[side].write(writer.finished(line.rstrip(b"\n")) + b"\n")


@contextmanager
def _whole(output: Path) -> Iterator[Path]:
    """A folder that gets its name when everything is in it, and is gone otherwise.

    Raises:
        OutputError: there is one of this name, or it can't be written.
    """
    if output.exists():
        raise OutputError(f"{output} exists; give a folder that does not")
    folder = output.with_name(f".{output.name}.tmp")
    try:
        shutil.rmtree(folder, ignore_errors=True)  # of a command that was killed
        folder.mkdir(parents=True)
        yield folder
        folder.replace(output)
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"can't write {output}: {error.strerror or error}; free space or give another --output") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
