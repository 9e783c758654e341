"""Which rollout is running here, and inside which functions: context variables, right under asyncio and threads.

A new asyncio task and `asyncio.to_thread` carry the context along. A thread pool of one's own does not: submit
`contextvars.copy_context().run` to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from nat_finetune.tracing.recorder import Recorder

_recorder: ContextVar[Recorder | None] = ContextVar("nat_finetune_recorder", default=None)
_path: ContextVar[tuple[str, ...]] = ContextVar("nat_finetune_function_path", default=())


def current_recorder() -> Recorder | None:
    """The recorder of the rollout that is running here, None outside of rollouts."""
    return _recorder.get()


def current_path() -> tuple[str, ...]:
    """Names of the functions that are running here, outermost first."""
    return _path.get()


@contextmanager
def recording(recorder: Recorder) -> Iterator[Recorder]:
    """Record what happens inside into `recorder`."""
    recorder_token, path_token = _recorder.set(recorder), _path.set(())
    try:
        yield recorder
    finally:
        _recorder.reset(recorder_token)
        _path.reset(path_token)


@contextmanager
def inside(function: str) -> Iterator[tuple[str, ...]]:
    """Put a function's name on the path."""
    path = (*_path.get(), function)
    token = _path.set(path)
    try:
        yield path
    finally:
        _path.reset(token)
