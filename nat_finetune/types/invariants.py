"""How a type refuses to be made wrong."""

from __future__ import annotations


def require(condition: bool, message: str) -> None:
    """Raise ValueError with the message unless the condition holds."""
    if not condition:
        raise ValueError(message)
