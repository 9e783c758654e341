"""Addresses and headers of a config: what no request could be sent with is refused before anything runs."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from pydantic import SecretStr

from nat_finetune.remote.secrets import require_kept

_NO_HOST = re.compile(r"[\s\x00-\x20<>\"{}|\\^`%\[\]/?#@]")


def require_address(url: str) -> str:
    """The URL as it is.

    Raises:
        ValueError: it has no http(s) scheme, no host, a host that can't be one, or a port outside 1 to 65535.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        if ":" in host:
            ipaddress.IPv6Address(host)
    except ValueError as error:
        # urlsplit's own words repeat what is before the host: nothing of a URL with credentials may be shown.
        raise ValueError(
            f"expected a URL such as http://host:8000: {'its address' if '@' in url else error} is wrong"
        ) from None
    if parts.scheme not in ("http", "https") or not host or _NO_HOST.search(host) or port == 0 or re.search(r"\s", url):
        shown = "another" if "@" in url else repr(url)
        raise ValueError(f"expected http:// or https://, a host and a port from 1 to 65535, found {shown}")
    return url


def require_headers(headers: Mapping[str, SecretStr], *, authorization: str | None = None) -> None:
    """Refuse headers that can't be sent; `authorization` is "KEY is", where a key of the config says that one.

    Raises:
        ValueError: a name or a value that HTTP does not know, or a second Authorization.
        ConfigError: the value is the stars that a run folder has in place of a secret.
    """
    for name, secret in headers.items():
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            raise ValueError(f"{name!r} is no name of a header")
        if authorization is not None and name.lower() == "authorization":
            raise ValueError(f"{authorization} what Authorization is made of")
        text = secret.get_secret_value()
        if not text.isascii() or not text.isprintable():
            raise ValueError(f"{name} holds characters that can't stand in an HTTP header")
        require_kept(text, name)
