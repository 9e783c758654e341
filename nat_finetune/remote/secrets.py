"""Secrets: taken from the environment, never shown."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from pydantic import SecretStr

from nat_finetune.config.resolved import REDACTED
from nat_finetune.errors import ConfigError

HIDDEN = "[key]"
"""What stands in messages in a secret's place."""
_SHORTEST = 4
"""Characters. What is shorter is no secret, and taking it out would riddle the text."""


def secret_from_env(name: str) -> SecretStr | None:
    """The secret that an environment variable holds; None where it is not set or empty.

    Raises:
        ConfigError: it can't stand in an HTTP header.
    """
    key = checked_key(os.environ.get(name, ""), name)
    return SecretStr(key) if key else None


def checked_key(key: str, what: str) -> str:
    """The key without white space around it; refused, without showing it, where it can't stand in a header.

    Raises:
        ConfigError: it holds a space or something that is not printable ASCII.
    """
    key = key.strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(f"{what} holds characters that can't stand in an HTTP header")
    return key


def require_kept(secret: str, what: str) -> str:
    """The secret as it is.

    Raises:
        ConfigError: it is the stars that a run folder has in the place of a secret that was written out in the config.
    """
    if secret == REDACTED:
        raise ConfigError(f"{what} was not kept: a run folder holds no secrets; write it as ${{VAR}}, and a resume can read it")
    return secret


def revealed(secrets: Iterable[SecretStr | str | None]) -> tuple[str, ...]:
    """The texts that must not be shown, longest first, so that none is left in part."""
    texts = {s.get_secret_value() if isinstance(s, SecretStr) else s for s in secrets if s is not None}
    return tuple(sorted((text for text in texts if len(text) >= _SHORTEST), key=lambda text: (-len(text), text)))


def redact(text: str, secrets: Iterable[SecretStr | str | None]) -> str:
    """The text without the secrets, and without what stands after `Bearer` or before `@` in a URL."""
    for secret in revealed(secrets):
        text = text.replace(secret, HIDDEN)
    text = re.sub(r"(?i)\b(bearer|basic)\s+(?!\[)[\w.~+/=-]{4,}", rf"\1 {HIDDEN}", text)
    return re.sub(r"(?i)\b(https?://)[^\s/@\"']+@", rf"\1{HIDDEN}@", text)


def snippet(text: str, secrets: Iterable[SecretStr | str | None] = (), length: int = 300) -> str:
    """The beginning of an answer, for a message, without the secrets where the answer repeats them."""
    line = redact(" ".join(text.split()), secrets)
    return line if len(line) <= length else f"{line[:length]}… ({len(text):,} characters)"
