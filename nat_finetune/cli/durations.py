"""Durations on the command line: `90`, `90s`, `30m`, `6h`, `1h30m`."""

from __future__ import annotations

import math
import re

from nat_finetune.errors import ConfigError

_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_PARTS = re.compile(r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?")


def seconds_of(text: str, option: str) -> float:
    """The seconds that a text means.

    Raises:
        ConfigError: it means none, or no time at all; names the option.
    """
    found = _PARTS.fullmatch(text.strip())
    total = (
        sum(float(part) * unit for part, unit in zip(found.groups(), _UNITS.values(), strict=True) if part) if found else 0.0
    )
    if not 0 < total < math.inf:
        raise ConfigError(f"{option} takes a duration such as 90s, 30m, 6h or 1h30m, found {text!r}")
    return total


def duration(seconds: float) -> str:
    """Seconds as a person says them.

    >>> duration(8000), duration(59.6), duration(21600)
    ('2h13m20s', '1m', '6h')
    """
    left, parts = round(seconds), []
    for name, unit in _UNITS.items():
        count, left = divmod(left, int(unit))
        if count:
            parts.append(f"{count}{name}")
    return "".join(parts) or "0s"
