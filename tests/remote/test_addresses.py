"""What no request could be sent with is refused as a config is read."""

from __future__ import annotations

import pytest
from nat_finetune_plugins.nemo_rl.settings import RayJobsConfig
from nat_finetune_plugins.openpipe_art.config import ArtBackendConfig
from pydantic import SecretStr, ValidationError

from nat_finetune.errors import ConfigError
from nat_finetune.llms.openai import OpenAILLMConfig
from nat_finetune.remote.addresses import require_address, require_headers


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8200",
        "https://host",
        "HTTP://HOST:1",
        "http://[::1]:8000/v1",
        "http://münchen.de",
        "http://a_b-c.d:65535",
    ],
)
def test_an_address(url):
    assert require_address(url) == url


@pytest.mark.parametrize(
    "url",
    [
        *[
            "host:80",
            "ftp://host",
            "http://",
            "http://:80",
            "http://h:0",
            "http://h:65536",
            "http://h:x",
            "http://h:-1",
            "http://[a:b]",
            "http://[::1",
            "http://a[b",
        ],
        "",
        "http://h%zz",
        "http://ho st",
        "http://h\n",
    ],
)
def test_what_is_none(url):
    with pytest.raises(ValueError, match="expected"):
        require_address(url)


def test_a_bad_address_shows_no_credentials():
    with pytest.raises(ValueError, match="is wrong") as raised:
        require_address("http://user:pass-word@host:x")
    assert "pass-word" not in str(raised.value)


@pytest.mark.parametrize(
    ("headers", "said"),
    [({"X": "é"}, "X holds"), ({"é x": "a"}, "no name"), ({"": "a"}, "no name"), ({"authorization": "a"}, "token is what")],
)
def test_a_header_that_can_not_be_sent(headers, said):
    with pytest.raises(ValidationError, match=said):
        RayJobsConfig.model_validate({"name": "ray_jobs", "token": "t", "headers": headers})


def test_a_secret_that_a_run_folder_did_not_keep():
    for given in ({"token": "**********"}, {"headers": {"X-Key": "**********"}}, {"token": "a b"}):
        with pytest.raises((ConfigError, ValidationError), match=r"not kept|can't stand"):
            RayJobsConfig.model_validate({"name": "ray_jobs", **given})
    require_headers({"X-Key": SecretStr("a b"), "Authorization": SecretStr("Basic x")})


@pytest.mark.parametrize("ip", ["a:b", "host:80", "a[b", "a%zz"])
def test_the_host_of_an_art_server(ip):
    with pytest.raises(ValidationError, match="without a port"):
        ArtBackendConfig.model_validate({"ip": ip, "port": 1})
    assert ArtBackendConfig(ip="[::1]", port=1).ip == "::1"


def test_the_places_that_ask():
    with pytest.raises(ValidationError, match="Port out of range"):
        RayJobsConfig(name="ray_jobs", url="http://head:99999")
    with pytest.raises(ValidationError, match="Port out of range"):
        OpenAILLMConfig(model_name="m", base_url="http://host:99999/v1")
