"""How much memory the machine has left, and giving back what is free."""

import os
import platform

import pytest

from nat_finetune.local.device import free_ram, give_back


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries can't be asked")
def test_what_was_freed_goes_back():
    assert free_ram() > 0
    blocks = [bytearray(b"x" * 60_000) for _ in range(4_000)]  # 240 MB in pieces that glibc keeps when they are freed
    del blocks[:-1]  # the last one holds the end of the heap
    kept = resident()
    give_back()
    assert resident() < kept - 150_000_000
