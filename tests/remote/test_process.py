"""A job as a process: started once whoever asks, found by its folder, ended with all that it started."""

import asyncio
import os
import time

import pytest

from nat_finetune.errors import BackendError
from nat_finetune.remote import process

SLEEPER = ["/bin/sh", "-c", "sleep 60 & wait"]


async def ended(folder, who):
    async with asyncio.timeout(20):
        while (seen := process.look(folder, who)).running:
            await asyncio.sleep(0.02)
    return seen


async def start(folder, command):
    return await process.start(folder, command, cwd=folder, environment=os.environ)


async def test_it_runs_to_its_end_and_leaves_log_and_exit_code(tmp_path):
    assert not process.started(tmp_path)
    who = await start(tmp_path, ["/bin/sh", "-c", "echo one; echo two >&2; exit 3"])
    seen = await ended(tmp_path, who)
    assert (seen.exit_code, seen.cancelled) == (3, False)
    assert process.read_log_from(tmp_path, 0)[0].splitlines() == ["one", "two"]
    assert process.read_log_from(tmp_path, 4) == ("two\n", 8)


async def test_it_is_started_once_whoever_asks(tmp_path):
    command = ["/bin/sh", "-c", f"echo run >> {tmp_path}/count; sleep 0.3"]
    first, second = await asyncio.gather(start(tmp_path, command), start(tmp_path, command))
    third = await start(tmp_path, command)
    assert first == second == third == await process.who_runs(tmp_path)
    await ended(tmp_path, first)
    assert (tmp_path / "count").read_text() == "run\n"


async def test_it_is_in_a_group_of_its_own_and_ends_with_its_children(tmp_path):
    who = await start(tmp_path, SLEEPER)
    assert who.group != os.getpgrp()
    time.sleep(0.3)
    began = time.monotonic()
    await process.end(tmp_path, who, grace=5)
    assert time.monotonic() - began < 5
    seen = process.look(tmp_path, who)
    assert (seen.running, seen.cancelled) == (False, True)
    assert not process._group_lives(who.group)  # a zombie may be left where nobody collects orphans


async def test_another_process_of_the_same_number_is_not_it(tmp_path):
    who = await start(tmp_path, ["/bin/sh", "-c", "exit 0"])
    await ended(tmp_path, who)
    (tmp_path / process.EXIT).unlink()
    impostor = process.Who(os.getpid(), who.group, who.born)
    assert not process.look(tmp_path, impostor).running


async def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(BackendError, match="no such folder"):
        await process.start(tmp_path, ["true"], cwd=tmp_path / "gone", environment={})
