"""What holds for every test: one thread, a fixed seed, and no network beyond this machine."""

from __future__ import annotations

import os

# Before torch or transformers is imported anywhere, in this process and in those that tests start.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["NO_COLOR"] = "1"

import random
import socket
import sys
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections go to this machine or nowhere."""

    def guarded(original: Any) -> Any:
        def connect(self: socket.socket, address: Any) -> Any:
            if self.family != socket.AF_UNIX and not _is_loopback(address):
                raise AssertionError(f"a test must not use the network, tried to reach {address!r}")
            return original(self, address)

        return connect

    monkeypatch.setattr(socket.socket, "connect", guarded(socket.socket.connect))
    monkeypatch.setattr(socket.socket, "connect_ex", guarded(socket.socket.connect_ex))


def _is_loopback(address: Any) -> bool:
    host = str(address[0])
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Tests that draw from a global generator draw the same each time. The package itself never does."""
    random.seed(0)
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        torch.manual_seed(0)
        torch.set_num_threads(1)


@pytest.fixture
def root() -> Path:
    """The checkout's folder."""
    return ROOT
