"""How much memory the machine has left; without torch, for whoever only asks."""

from __future__ import annotations


def free_ram() -> int | None:
    """Bytes that the system could give out; None where it does not say in Linux's way."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            found = (line.split() for line in lines)
            return next((int(words[1]) * 1024 for words in found if words[0] == "MemAvailable:"), None)
    except OSError:
        return None
