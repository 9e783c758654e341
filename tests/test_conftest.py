"""The guards of conftest.py hold."""

import os
import socket

import pytest


@pytest.mark.parametrize("address", [("192.0.2.1", 80), ("example.org", 443), ("::2", 80)])
def test_another_machine_is_out_of_reach(address):
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with (
        socket.socket(family, socket.SOCK_STREAM) as sock,
        pytest.raises(AssertionError, match=f"must not use the network.*{address[0]}"),
    ):
        sock.connect(address)


def test_this_machine_is_within_reach():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        pass


def test_one_thread():
    torch = pytest.importorskip("torch")
    assert os.environ["OMP_NUM_THREADS"] == "1"
    assert torch.get_num_threads() == 1
