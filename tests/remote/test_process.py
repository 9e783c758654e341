"""A job as a process: started once whoever asks, found by its folder, ended with all that it started."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from nat_finetune.errors import BackendError
from nat_finetune.remote import process


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "job with a space"
    made.mkdir()
    return made


async def started(folder, script):
    return await process.start(folder, ["/bin/sh", "-c", script], cwd=folder, environment=os.environ)


async def ended(folder, who, seconds=10):
    until = time.monotonic() + seconds
    while process.look(folder, who).running:
        assert time.monotonic() < until
        await asyncio.sleep(0.01)
    return process.look(folder, who)


async def test_it_runs_elsewhere_and_leaves_its_exit_code(folder):
    who = await started(folder, "echo out; echo err >&2; exit 3")
    seen = await ended(folder, who)
    assert (seen.exit_code, seen.cancelled) == (3, False)
    assert (folder / "driver.log").read_text() == "out\nerr\n"
    assert who.group != os.getpgrp()


async def test_a_second_start_starts_nothing(folder):
    script = "echo x >> starts; sleep 0.3"
    refs = await asyncio.gather(*(started(folder, script) for _ in range(8)))
    assert len(set(refs)) == 1
    await ended(folder, refs[0])
    assert await started(folder, script) == refs[0]
    assert (folder / "starts").read_text() == "x\n"


async def test_cancel_ends_the_whole_group(folder):
    who = await started(folder, "sleep 300 & echo $! > child; sleep 300")
    while not (folder / "child").exists() or not (folder / "child").read_text():
        await asyncio.sleep(0.01)
    child = int((folder / "child").read_text())
    await process.end(folder, who, grace=5)
    seen = process.look(folder, who)
    assert (seen.running, seen.exit_code, seen.cancelled) == (False, None, True)
    assert not lives(child)


async def test_what_ignores_sigterm_is_killed(folder):
    who = await started(folder, "trap '' TERM; echo ready; while true; do sleep 0.05; done")
    while not (folder / "driver.log").exists() or not (folder / "driver.log").read_text():
        await asyncio.sleep(0.01)
    began = time.monotonic()
    await process.end(folder, who, grace=0.3)
    assert 0.3 <= time.monotonic() - began < 5
    assert process.look(folder, who) == process.Seen(False, None, True)


async def test_cancelling_what_has_ended_changes_nothing(folder):
    who = await started(folder, "exit 0")
    await ended(folder, who)
    await process.end(folder, who, grace=1)
    assert process.look(folder, who) == process.Seen(False, 0, False)


async def test_a_killed_shell_has_no_exit_code(folder):
    who = await started(folder, "sleep 300")
    os.killpg(who.group, signal.SIGKILL)
    assert await ended(folder, who) == process.Seen(False, None, False)


async def test_another_process_of_the_same_number_is_not_it(folder):
    who = await started(folder, "sleep 300")
    assert process.look(folder, who).running
    later = process.Who(who.pid, who.group, str(int(who.born) + 1))
    assert not process.look(folder, later).running
    await process.end(folder, who, grace=1)


async def test_a_claim_without_a_process_is_said(folder, monkeypatch):
    monkeypatch.setattr(process, "_CLAIM_SECONDS", 0.1)
    (folder / "claim").mkdir()
    with pytest.raises(BackendError, match="its shell was killed at once"):
        await process.who_runs(folder)
    with pytest.raises(BackendError, match="remove that folder"):
        await started(folder, "echo never > ran")
    assert not (folder / "ran").exists()


async def test_no_checkout_is_said(folder):
    with pytest.raises(BackendError, match="no such folder to run the job in"):
        await process.start(folder, ["uv"], cwd=folder / "none", environment={})


async def test_our_own_environment_is_not_handed_on(folder, monkeypatch):
    monkeypatch.setenv("VIRTUAL_ENV", "/ours")
    monkeypatch.setenv("KEPT", "yes")
    who = await started(folder, 'echo "${VIRTUAL_ENV:-none} $KEPT"')
    await ended(folder, who)
    assert (folder / "driver.log").read_text() == "none yes\n"


def test_a_log_is_read_on_from_where_it_was(folder):
    log = folder / "driver.log"
    assert process.read_log_from(folder, 0) == ("", 0)
    log.write_bytes("eins ▶\nzw".encode())
    text, offset = process.read_log_from(folder, 0)
    assert text == "eins ▶\n"
    log.write_bytes("eins ▶\nzwei\n".encode())
    assert process.read_log_from(folder, offset)[0] == "zwei\n"


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
