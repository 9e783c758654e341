"""How a command ends: what nat-finetune raised is a message and an exit code, anything else a bug with a traceback."""

from __future__ import annotations

import sys
import tempfile
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from nat_finetune import __version__
from nat_finetune.errors import ConfigError, NatFinetuneError

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], None]


def report(error: NatFinetuneError, *, debug: bool) -> int:
    """Show an error on standard error; its exit code."""
    if debug:
        traceback.print_exception(error)
    print(describe(error), file=sys.stderr)
    return error.exit_code


def describe(error: NatFinetuneError) -> str:
    """The message; a config's problems one a line."""
    if isinstance(error, ConfigError) and len(error.problems) > 1:
        return "\n".join([f"nat-finetune: {len(error.problems)} problems", *(f"  {problem}" for problem in error.problems)])
    return f"nat-finetune: {error}"


def report_unexpected(*, debug: bool) -> Hook:
    """What `sys.excepthook` does with errors that nobody expected; Python then ends with exit code 1."""

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        text = "".join(traceback.format_exception(kind, error, trace))
        print(f"nat-finetune: internal error: {kind.__name__}: {error}", file=sys.stderr)
        written = None if debug else _keep(f"nat-finetune {__version__}: {' '.join(sys.argv)}\n{text}")
        if written is None:
            print(text, file=sys.stderr)
        else:
            print(f"This is a bug. The traceback is in {written}; --debug shows it here.", file=sys.stderr)

    return hook


def _keep(text: str) -> Path | None:
    """Write a traceback where it outlives the terminal; None where that is impossible."""
    path = Path(tempfile.gettempdir()) / f"nat-finetune-error-{datetime.now(UTC):%Y%m%dT%H%M%S%f}.txt"
    try:
        path.write_text(text, encoding="utf-8")
    except OSError:
        return None
    return path
