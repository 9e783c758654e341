"""A job as a process on this machine: started once whatever happens, found again by any process, ended with all its children.

The shell that runs the job is nobody's child, in a process group of its own. Before it starts anything it makes a folder,
`claim`, which only one process can make: whoever comes second leaves at once. It writes down who it is, and at the end the exit
code. So a crash of nat-finetune at any point leaves either no claim, and the job may be started, or one, and it was.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nat_finetune.errors import BackendError, OutputError
from nat_finetune.whole_file import write_whole

CLAIM, WHO, EXIT, CANCELLED, LOG = "claim", "claim/process", "exit_code", "cancelled", "driver.log"
_CLAIM_SECONDS = 10.0
"""From a claim to the line that says who made it; a shell needs milliseconds."""
_OURS = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME")
"""Variables of nat-finetune's own environment, which are wrong for another one."""

_SHELL = r"""
folder=$1; shift
mkdir "$folder/claim" 2>/dev/null || exit 0
born=$(cut -d' ' -f22 "/proc/$$/stat" 2>/dev/null || LC_ALL=C TZ=UTC ps -o lstart= -p $$)
group=$(cut -d' ' -f5 "/proc/$$/stat" 2>/dev/null || ps -o pgid= -p $$)
printf '%s\n%s\n%s\n' "$$" "$group" "$born" > "$folder/claim/new"
mv "$folder/claim/new" "$folder/claim/process"
"$@" >> "$folder/driver.log" 2>&1
printf '%s\n' "$?" > "$folder/exit_code.new"
mv "$folder/exit_code.new" "$folder/exit_code"
"""


@dataclass(frozen=True, slots=True)
class Who:
    """A process, told apart from a later one of the same number by when it was born."""

    pid: int
    group: int
    born: str


@dataclass(frozen=True, slots=True)
class Seen:
    """Where a job stands."""

    running: bool
    exit_code: int | None
    """None: it runs, or it ended without leaving one."""
    cancelled: bool


def started(folder: Path) -> bool:
    """Whether a process took on the job of this folder."""
    return (folder / CLAIM).is_dir()


async def start(folder: Path, command: Sequence[str], *, cwd: Path, environment: Mapping[str, str]) -> Who:
    """Start the job, unless it was started before; who runs it.

    Raises:
        BackendError: the folder to run in is not there, or no shell could be started.
        OutputError: the job's own folder can't be made.
    """
    if not cwd.is_dir():
        raise BackendError(f"{cwd}: no such folder to run the job in")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder} can't be made: {error.strerror or error}") from error
    variables = {name: value for name, value in environment.items() if name not in _OURS}
    # The outer shell leaves at once: the inner one then belongs to nobody here, and outlives us.
    line = ["/bin/sh", "-c", '/bin/sh -c "$0" job "$@" </dev/null >/dev/null 2>&1 &', _SHELL, str(folder), *command]
    try:
        done = await asyncio.to_thread(
            subprocess.run, line, cwd=cwd, env=variables, start_new_session=True, capture_output=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BackendError(f"can't start {command[0]!r} in {cwd}: {error}") from error
    if done.returncode:
        raise BackendError(f"can't start {command[0]!r} in {cwd}: {done.stderr.decode(errors='replace')[:300]}")
    return await who_runs(folder)


async def who_runs(folder: Path) -> Who:
    """The process that took on the job.

    Raises:
        BackendError: it died before it said who it is, and so before it started anything.
    """
    until = time.monotonic() + _CLAIM_SECONDS
    while not (folder / WHO).is_file():
        if time.monotonic() > until:
            raise BackendError(
                f"{folder / CLAIM} says that the job was begun, but not by whom: its shell was killed at once; "
                "remove that folder and resume"
            )
        await asyncio.sleep(0.02)
    return read_who(folder)


def read_who(folder: Path) -> Who:
    """What the shell wrote of itself.

    Raises:
        BackendError: it is not readable.
    """
    path = folder / WHO
    try:
        pid, group, born = path.read_text(encoding="utf-8").splitlines()
        return Who(int(pid), int(group), born.strip())
    except (OSError, ValueError) as error:
        raise BackendError(f"{path} does not say which process runs the job: {error}") from error


def look(folder: Path, who: Who) -> Seen:
    """Where the job stands."""
    running = _alive(who)
    code = _exit_code(folder)  # after that: the shell writes it before it ends
    return Seen(running and code is None, code, (folder / CANCELLED).exists())


def _exit_code(folder: Path) -> int | None:
    try:
        return int((folder / EXIT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _alive(who: Who) -> bool:
    try:
        stat = Path(f"/proc/{who.pid}/stat").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return not Path("/proc/self/stat").exists() and _born(who.pid) == who.born
    except OSError:
        return False
    state, *rest = stat.rpartition(")")[2].split()
    return state not in "ZX" and rest[18] == who.born  # field 22; the name in field 2 may hold anything


def _born(pid: int) -> str:
    """Where there is no /proc."""
    asked = ["ps", "-o", "lstart=", "-p", str(pid)]
    told = subprocess.run(asked, env={**os.environ, "LC_ALL": "C", "TZ": "UTC"}, capture_output=True, text=True, check=False)
    return told.stdout.strip()


async def end(folder: Path, who: Who, *, grace: float) -> None:
    """Ask the whole process group to end, and make it after `grace` seconds.

    Raises:
        OutputError: it can't be written down that it was cancelled; nothing was ended.
    """
    if not look(folder, who).running:
        return
    write_whole(folder / CANCELLED, "")
    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, 10.0)):
        _signal(who, number)
        until = time.monotonic() + seconds
        while _group_lives(who.group) and time.monotonic() < until:
            await asyncio.sleep(0.05)
        if not _group_lives(who.group):
            return


def _signal(who: Who, number: signal.Signals) -> None:
    try:
        os.killpg(who.group, number)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise BackendError(f"process group {who.group} can't be ended: {error}") from error


def _group_lives(group: int) -> bool:
    """Whether a process of the group still does something: a zombie does not, and may stay where nobody collects it."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    proc = Path("/proc")
    if not (proc / "self/stat").exists():
        return True
    for stat in proc.glob("[0-9]*/stat"):
        try:
            state, _, found, *_ = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        if found == str(group) and state not in "ZX":
            return True
    return False


def read_log_from(folder: Path, offset: int) -> tuple[str, int]:
    """What the log has gained since byte `offset`, and where it ends now; a character that is half written waits.

    Raises:
        OutputError: it can't be read.
    """
    path = folder / LOG
    try:
        with path.open("rb") as file:
            file.seek(offset)
            gained = file.read()
    except FileNotFoundError:
        return "", offset
    except OSError as error:
        raise OutputError(f"{path} can't be read: {error}") from error
    whole = gained[: gained.rfind(b"\n") + 1]
    return whole.decode("utf-8", errors="replace"), offset + len(whole)
