"""How much memory the machine has left, and giving back what is free: memory, and threads that help to compute."""

import os
import platform
import subprocess
import sys

import pytest

SHARE_MEMORY = """
import os, threading
from nat_finetune.local.device import share_freed_memory
from nat_finetune.local.ram import free_ram

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def work():
    blocks = [bytearray(b"x" * 60_000) for _ in range(4_000)]  # 240 MB

assert free_ram() > 0
share_freed_memory()
before = resident()
for _ in range(3):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
print(before, resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries can't be asked")
def test_what_one_thread_has_freed_serves_the_next_and_is_kept():
    made = subprocess.run([sys.executable, "-c", SHARE_MEMORY], capture_output=True, text=True, check=True)
    before, after = map(int, made.stdout.split())
    assert 200_000_000 < after - before < 300_000_000


COUNT_HELPERS = """
import asyncio, os, threading, time
import torch
from nat_finetune.local.device import end_helpers
from nat_finetune.local.model import load_model
from nat_finetune.local.policy import LocalPolicy
from nat_finetune.types import SamplingParams

def helpers(expected=None):
    for _ in range(200):  # the kernel lists a thread for a moment after its end
        found = len(os.listdir("/proc/self/task")) - threading.active_count()
        if found == expected:
            break
        time.sleep(0.01 if expected is not None else 0)
    return found

torch.set_num_threads(2)
at_first = helpers()
torch.ones(1 << 20).exp()
computed = helpers()
end_helpers()
ended = helpers(at_first)
policy = LocalPolicy("policy", load_model("builtin:tic-tac-toe"))
policy.updated(None)

async def sampled():
    prompt = policy.format.encode("which squares are free? ")
    sampling = [SamplingParams(max_tokens=4, seed=seed) for seed in range(32)]
    await asyncio.gather(*(policy.engine.generate(prompt, one, stop_ids=policy.format.stop_ids) for one in sampling))
    with policy.exclusive():
        return helpers(at_first)

print(at_first, computed, ended, asyncio.run(sampled()))
policy.close()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="GNU's OpenMP, and the kernel's list of threads")
def test_no_thread_keeps_helpers_while_another_computes():
    quiet = {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    made = subprocess.run(
        [sys.executable, "-c", COUNT_HELPERS], capture_output=True, text=True, env={**os.environ, **quiet}, check=True
    )
    at_first, computed, ended, after_sampling = map(int, made.stdout.split())
    assert computed == at_first + 1  # else this process has one thread, and the test shows nothing
    assert ended == at_first
    assert after_sampling == at_first
