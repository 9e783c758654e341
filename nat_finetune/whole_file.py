"""Files of the user's: written whole or not at all."""

from __future__ import annotations

from os.path import realpath
from pathlib import Path
from shutil import copymode

from nat_finetune.errors import OutputError


def write_whole(path: Path, text: str, newline: str = "\n") -> None:
    """Write a text beside its place and rename it. A link stays one, and so do the rights of a file that is replaced.

    Raises:
        OutputError: it can't be written; the old file, if any, is untouched.
    """
    place = Path(realpath(path))
    beside = place.with_name(f".{place.name}.new")
    try:
        if place.exists() and not place.is_file():  # /dev/stdout, a pipe: there is nothing to replace
            place.write_text(text, encoding="utf-8", newline=newline)
            return
        beside.write_text(text, encoding="utf-8", newline=newline)
        if place.exists():
            copymode(place, beside)
        beside.replace(place)
    except OSError as error:
        if beside.exists():
            beside.unlink()
        raise OutputError(f"{path} can't be written: {error.strerror}") from error
