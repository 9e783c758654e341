"""Secrets don't get into texts."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from nat_finetune.errors import ConfigError
from nat_finetune.remote.secrets import redact, secret_from_env


def test_what_is_taken_out():
    secrets = ["token-1", SecretStr("token-1-long"), None, ""]
    assert redact("token-1-long, token-1", secrets) == "[key], [key]"
    assert redact("Authorization: Bearer abcdefgh", []) == "Authorization: Bearer [key]"
    assert redact("at https://anna:pass@host/x", []) == "at https://[key]@host/x"
    assert redact("a bearer of news", []) == "a bearer of news"


def test_from_the_environment(monkeypatch):
    monkeypatch.setenv("NF_TOKEN", " abc-def \n")
    assert secret_from_env("NF_TOKEN").get_secret_value() == "abc-def"
    assert "abc" not in repr(secret_from_env("NF_TOKEN"))
    monkeypatch.setenv("NF_TOKEN", "")
    assert secret_from_env("NF_TOKEN") is None
    monkeypatch.setenv("NF_TOKEN", "two words")
    with pytest.raises(ConfigError) as caught:
        secret_from_env("NF_TOKEN")
    assert "words" not in str(caught.value)
