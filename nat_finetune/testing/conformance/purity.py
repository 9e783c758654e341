"""What a block of code did beside returning: files, sockets, processes, and draws from the global generators."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_IO = ("open", "socket.connect", "socket.bind", "subprocess.Popen", "os.remove", "os.rename", "os.mkdir", "os.system")


class _Ear:
    """Hears the interpreter's audit events of one thread while it listens."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.thread: int | None = None

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        """What `sys.addaudithook` calls."""
        if self.thread == threading.get_ident() and event in _IO:
            self.heard.append(f"{event} {arguments[0]!r}")


@cache
def _ear() -> _Ear:
    """One for the process: the interpreter does not let go of a hook."""
    ear = _Ear()
    sys.addaudithook(ear.hook)
    return ear


@contextmanager
def watched() -> Iterator[list[str]]:
    """Collects what happens inside that a pure function does not do; complete when the block is left."""
    ear = _ear()
    effects: list[str] = []
    before = _generators()
    ear.heard, ear.thread = [], threading.get_ident()
    try:
        yield effects
    finally:
        ear.thread = None
        effects += [f"IO ({event})" for event in dict.fromkeys(ear.heard)]
        after = _generators()
        effects += [f"a draw from the global generator of {name}" for name in before if before[name] != after[name]]


def _generators() -> dict[str, str]:
    """The states of the global generators, of the libraries that are loaded."""
    states = {"random": repr(random.getstate())}
    if "numpy" in sys.modules:
        states["numpy"] = repr(sys.modules["numpy"].random.get_state(legacy=False))
    if "torch" in sys.modules:
        states["torch"] = repr(sys.modules["torch"].get_rng_state().tolist())
    return states
