"""Prepares, submits and follows a job in a process of its own, and kills that process at a named point (`kill -9`).

Arguments: checkout, run folder, point, and the URL of Ray where the job is one of its. The spec and the ref are kept as the run
folder's job record keeps them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from nat_finetune_plugins.nemo_rl.launchers import RayLauncher, Start

from nat_finetune.remote import process
from nat_finetune.remote.http import Service
from nat_finetune.remote.records import JobRecord, JobRecords
from nat_finetune.runstore import RunStore
from nat_finetune.types import TrainingJobRef, TrainingJobStatus
from tests.plugins.nemo_rl.made import adapter, collection, pairs, settings

POINTS = (
    "before the files",
    "after the files",
    "after the spec is kept",
    "before the shell",
    "after the shell",
    "after the claim",
    "before the ref is kept",
    "after the ref is kept",
    "while waiting",
    "after the end",
)


def die(here: str) -> None:
    if here == sys.argv[3]:
        os.kill(os.getpid(), signal.SIGKILL)


def arm() -> None:
    """Deaths inside a call of the adapter."""
    run, who_runs, look = subprocess.run, process.who_runs, process.look

    def dying_run(*arguments: Any, **more: Any) -> Any:
        die("before the shell")
        done = run(*arguments, **more)
        die("after the shell")
        return done

    async def dying_who_runs(folder: Path) -> process.Who:
        found = await who_runs(folder)
        die("after the claim")
        return found

    def dying_look(folder: Path, who: process.Who) -> process.Seen:
        seen = look(folder, who)
        if seen.running:
            die("while waiting")
        return seen

    subprocess.run, process.who_runs, process.look = dying_run, dying_who_runs, dying_look


def arm_ray() -> None:
    """The same deaths around Ray's requests."""
    post, start, status = Service.post, RayLauncher.start, RayLauncher.status

    async def dying_post(self: Service, path: str, **more: Any) -> Any:
        die("before the shell")
        answer = await post(self, path, **more)
        die("after the shell")
        return answer

    async def dying_start(self: RayLauncher, asked: Start) -> TrainingJobRef:
        ref = await start(self, asked)
        die("after the claim")
        return ref

    async def dying_status(self: RayLauncher, ref: TrainingJobRef, folder: Path) -> TrainingJobStatus:
        told = await status(self, ref, folder)
        if told.backend_state == "RUNNING":
            die("while waiting")
        return told

    Service.post, RayLauncher.start, RayLauncher.status = dying_post, dying_start, dying_status


async def main(checkout: Path, folder: Path, ray: str | None = None) -> None:
    launch = {} if ray is None else {"launch": {"name": "ray_jobs", "url": ray}}
    made, records = adapter(settings(checkout, **launch), folder), JobRecords(RunStore(folder))
    arm() if ray is None else arm_ray()
    die("before the files")
    record = records.read(0)
    spec = await made.prepare(collection(pairs(10)), None) if record is None else record.spec
    die("after the files")
    record = records.write(JobRecord(spec)) if record is None else record
    die("after the spec is kept")
    ref = record.ref or await made.find(spec) or await made.submit(spec)
    die("before the ref is kept")
    records.write(JobRecord(spec, ref))
    die("after the ref is kept")
    await made.wait(ref)
    die("after the end")
    result = await made.result(ref)
    await made.close()
    (folder / "result").write_text(result.policy.location)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[4:]))
