"""The run folder: every file of a run is written and read here, so that nothing is ever half written.

A JSON file is written beside its place, synced and renamed. A log (`events.jsonl`, `metrics.jsonl`) only grows, a line at a
time; a line that a crash cut off is removed when the log is opened again. `state.json` is the commit point: what it does not
know of yet (later lines of the logs) is work since the last commit, which a resume finds and uses.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from nat_finetune.errors import ConfigError, OutputError, Problem
from nat_finetune.tracing.lines import from_line, to_line
from nat_finetune.types import EvalResult, PolicyRef, Rollout, UpdateResult

T = TypeVar("T")
_LONGEST_RESTART = 100
"""Bytes; the lines of rollouts are longer, and need not be parsed to see that they are none."""


@dataclass(slots=True)
class RunState:
    """Where a run stands; committed after every checkpoint."""

    steps_done: int = 0
    """Steps whose update is in the checkpoint."""
    checkpoint: str | None = None
    """Folder below `checkpoints/`."""
    events_offset: Annotated[int, Field(ge=0)] = 0
    """Bytes of `events.jsonl` that belong to those steps."""
    metrics_offset: Annotated[int, Field(ge=0)] = 0
    dropped_offset: Annotated[int, Field(ge=0)] = 0
    policy: PolicyRef | None = None
    """The policy in the checkpoint; None before the first update."""
    reference: PolicyRef | None = None
    """The policy that preferences are held against; None: the untrained one."""
    steps_without_signal: int = 0
    """Up to now, in a row."""
    steps_at_best: int = 0
    """Of those, the latest in a row in which every rollout scored the maximum."""
    curriculum: dict[str, Any] = field(default_factory=dict)
    """`difficulty` (mean reward by example key, as last seen), `included`, `percentile`, `last_expansion_epoch`."""
    ended: str | None = None
    """Why training ended before its last step."""
    unmeasured: str | None = None
    """Why the trained policy could not be evaluated."""
    seconds: dict[str, float] = field(default_factory=dict)
    """By stage, over all sessions of the run."""
    warnings: list[str] = field(default_factory=list)
    ledger: dict[str, Any] = field(default_factory=dict)
    finished: bool = False


def checkpoint_name(steps_done: int) -> str:
    """The folder of the checkpoint after so many steps; names sort by age."""
    return f"step-{steps_done:05d}"


class Log:
    """An append-only file of JSON lines.

    A last line without its end is being written by another process, or was cut off by a crash: reading leaves it out, and only
    who may write removes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mended = False

    @property
    def size(self) -> int:
        """Bytes written."""
        return self.path.stat().st_size if self.path.exists() else 0

    def append(self, value: Any) -> None:
        """Add one line.

        Raises:
            OutputError: the line could not be written whole; what was written of it is taken back.
        """
        self.extend([value])

    def extend(self, values: Iterable[Any]) -> None:
        """Add a line for each value.

        Raises:
            OutputError: the lines could not be written whole; what was written of them is taken back.
        """
        self.mend()
        before = self.size
        try:
            with self.path.open("ab") as file:
                for value in values:
                    file.write(to_json(value, inf_nan_mode="constants") + b"\n")
        except OSError as error:
            with suppress(OSError):  # a disk that takes no byte may refuse this too; the cut line goes later
                self._mended = False
                self.truncate(before)
            raise _cannot_write(self.path, error) from error

    def lines(self, offset: int = 0) -> Iterator[Any]:
        """Parsed lines from a byte offset on."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                yield _parsed(line, self.path)

    def truncate(self, size: int) -> None:
        """Forget everything after `size` bytes."""
        if self.path.exists():
            os.truncate(self.path, size)

    def sync(self) -> None:
        """Have the disk hold it."""
        if self.path.exists():
            with self.path.open("rb") as file:
                os.fsync(file.fileno())

    def mend(self) -> None:
        """Remove a last line that a crash cut off; for the one process that writes."""
        if self._mended or not self.path.exists():
            return
        self._mended = True
        with self.path.open("rb") as file:
            data_end = file.seek(0, os.SEEK_END)
            position = data_end
            while position > 0:
                start = max(0, position - 65536)
                file.seek(start)
                block = file.read(position - start)
                newline = block.rfind(b"\n")
                if newline >= 0:
                    position = start + newline + 1
                    break
                position = start
        if position != data_end:
            self.truncate(position)


class RunStore:
    """One run folder. Make it with `create` or `open`; whoever writes to one that others may know holds it `locked`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events = Log(folder / "events.jsonl")
        self.metrics = Log(folder / "metrics.jsonl")
        self.dropped = Log(folder / "dropped.jsonl")

    @classmethod
    def create(cls, folder: Path) -> RunStore:
        """Make a new run folder.

        Raises:
            OutputError: it can't be made, or there is one already.
        """
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            raise OutputError(f"{folder} exists; give another --output-dir, or continue it with --resume {folder}") from None
        except OSError as error:
            raise _cannot_write(folder, error) from error
        return cls(folder)

    @classmethod
    def open(cls, folder: Path) -> RunStore:
        """Open an existing run folder.

        Raises:
            ConfigError: there is no run in it.
        """
        if not (folder / "run.json").is_file():
            found = "a folder without run.json" if folder.is_dir() else "no such folder"
            raise ConfigError(
                Problem(f"expected a run folder, found {found}", file=str(folder), hint="see `nat-finetune runs`")
            )
        return cls(folder)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process; lines that a crash cut off are gone then.

        Raises:
            OutputError: another process works on this run.
        """
        import fcntl

        path = self.folder / ".lock"
        try:
            file = path.open("w")
        except OSError as error:
            raise _cannot_write(path, error) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OutputError(f"another process works on {self.folder}; wait for it or stop it") from None
            for log in (self.events, self.metrics, self.dropped):
                log.mend()
            yield

    @property
    def is_running(self) -> bool:
        """Whether a process works on this run."""
        import fcntl

        try:
            with (self.folder / ".lock").open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # no process ever held it, or it can't be read: then it can't be said
            return False
        return False

    # ------------------------------------------------------------------------------------------------------ whole files

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file in one piece."""
        self.write_text(name, to_json(value, indent=2, inf_nan_mode="constants").decode() + "\n")

    def read_json(self, name: str) -> Any:
        """Read a JSON file; None where there is none."""
        path = self.folder / name
        return _parsed(path.read_bytes(), path) if path.is_file() else None

    def read_as(self, name: str, kind: type[T]) -> T | None:
        """Read a JSON file as a dataclass of `kind`; None where there is none.

        Raises:
            OutputError: it holds something else.
        """
        value = self.read_json(name)
        return None if value is None else _as(kind, value, self.folder / name)

    def write_text(self, name: str, text: str) -> None:
        """Write a text file in one piece.

        Raises:
            OutputError: it can't be written; the old one, if any, is untouched.
        """
        path = self.folder / name
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            raise _cannot_write(path, error) from error

    # ------------------------------------------------------------------------------------------------------- run records

    def state(self) -> RunState:
        """The last committed state."""
        return self.read_as("state.json", RunState) or RunState()

    def commit(self, state: RunState) -> None:
        """Make `state` the truth, with the logs as they are now."""
        self.events.sync()
        state.events_offset, state.metrics_offset = self.events.size, self.metrics.size
        state.dropped_offset = self.dropped.size
        self.write_json("state.json", asdict(state))

    def add_rollout(self, step: int, rollout: Rollout) -> None:
        """Keep a finished rollout."""
        self.events.append({"step": step, "rollout": to_line(rollout)})

    def restart_step(self, step: int) -> None:
        """Say in the log that the step's rollouts so far do not count: it is collected anew."""
        self.events.append({"step": step, "restarted": True})

    def rollouts(self, offset: int = 0) -> Iterator[tuple[int, Rollout | None]]:
        """(step, rollout) of each line from `offset` on; None where the step was restarted."""
        for line in self.events.lines(offset):
            yield self._step(line), (self._rollout(line["rollout"]) if "rollout" in line else None)

    def _step(self, line: Any) -> int:
        step = line.get("step") if isinstance(line, dict) else None
        if not isinstance(step, int):
            raise _damaged(self.events.path, f"no line of a rollout: {str(line)[:80]}")
        return step

    def _rollout(self, line: Any) -> Rollout:
        try:
            whole = from_line(line)
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(self.events.path, f"no rollout: {error!r}") from error
        return _as(Rollout, whole, self.events.path)

    def counted_rollouts(self) -> Iterator[tuple[int, Rollout]]:
        """(step, rollout) of all rollouts but those whose step was collected anew behind them; read as a stream."""
        if not self.events.path.exists():
            return
        restarts: dict[int, int] = {}
        with self.events.path.open("rb") as file:
            for number, line in enumerate(file):
                if len(line) < _LONGEST_RESTART and b'"restarted"' in line:
                    restarts[self._step(_parsed(line, self.events.path))] = number
        for number, (step, rollout) in enumerate(self.rollouts()):
            if rollout is not None and number > restarts.get(step, -1):
                yield step, rollout

    def save_evaluation(self, name: str, result: EvalResult) -> None:
        """Keep an evaluation under a name such as `test-before`."""
        self.write_json(f"evaluations/{name}.json", result)

    def evaluation(self, name: str) -> EvalResult | None:
        """A kept evaluation, None where there is none."""
        return self.read_as(f"evaluations/{name}.json", EvalResult)

    def save_update(self, step: int, result: UpdateResult) -> None:
        """Keep what an update did."""
        self.write_json(f"updates/{step:05d}.json", result)

    def update_result(self, step: int) -> UpdateResult | None:
        """What the update of a step did, None where it was not done."""
        return self.read_as(f"updates/{step:05d}.json", UpdateResult)

    # ------------------------------------------------------------------------------------------------------- checkpoints

    def checkpoint(self, name: str) -> Path:
        """The folder of a checkpoint."""
        return self.folder / "checkpoints" / name

    def new_checkpoint(self, name: str) -> Path:
        """An empty folder for a checkpoint of this name, in place of a half-written one."""
        folder = self.checkpoint(name)
        try:
            if folder.exists():
                shutil.rmtree(folder)
            folder.mkdir(parents=True)
        except OSError as error:
            raise _cannot_write(folder, error) from error
        return folder

    def keep_newest_checkpoints(self, count: int, also: str | None = None) -> None:
        """Remove all checkpoints but the newest `count` and the one named `also`; their names sort by age."""
        for folder in sorted((self.folder / "checkpoints").iterdir())[:-count]:
            if folder.name != also:
                shutil.rmtree(folder)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _as(kind: type[T], value: Any, path: Path) -> T:
    try:
        value = _adapter(cast(Any, kind)).validate_python(value)
        return cast(T, value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _damaged(path, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def _parsed(text: bytes, path: Path) -> Any:
    try:
        return from_json(text, allow_inf_nan=True)
    except ValueError as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, found: str) -> OutputError:
    return OutputError(f"{path} is not what nat-finetune wrote: {found}; restore the file or start the run anew")


def _cannot_write(path: Path, error: OSError) -> OutputError:
    return OutputError(
        f"can't write {path}: {error.strerror or error}; free space or give another --output-dir, then continue with --resume"
    )
