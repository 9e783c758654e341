"""A real Ray head on loopback: jobs submitted, followed, cancelled and failed by our client and adapter, and by Ray's own.

NAT_FINETUNE_RAY_PYTHON names a Python that has `ray[default]`; Ray starts a dozen processes, so this is no test for every day.
"""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import httpx
import pytest
from nat_finetune_plugins.nemo_rl.ray_jobs import RayJobs, Submission

from nat_finetune.errors import ServiceError
from nat_finetune.remote.http import Service
from nat_finetune.testing.ray_server import RayServer
from nat_finetune.testing.serving import serving
from nat_finetune.types import JobState
from tests.plugins.nemo_rl.made import adapter, collection, pairs, settings
from tests.plugins.nemo_rl.stock import behave, make_checkout, starts

pytestmark = [pytest.mark.peer, pytest.mark.timeout(600)]
PYTHON = os.environ.get("NAT_FINETUNE_RAY_PYTHON")
NO_RAY = "NAT_FINETUNE_RAY_PYTHON names no Python that has ray[default]"
CLIENT = Path(__file__).with_name("ray_client.py")


def free_port():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    """The address of a head with one CPU and no GPU; all that it started ends with it."""
    if PYTHON is None:
        pytest.skip(NO_RAY)
    port, folder = free_port(), Path(tempfile.gettempdir()) / f"ray-{os.getpid()}"  # Ray's sockets need a short path
    command = [PYTHON.replace("python", "ray"), "start", "--head", "--block", "--node-ip-address=127.0.0.1"]
    command += [f"--port={free_port()}", f"--dashboard-port={port}", "--dashboard-host=127.0.0.1", "--num-cpus=1"]
    command += ["--num-gpus=0", "--object-store-memory=80000000", "--disable-usage-stats", f"--temp-dir={folder}"]
    log = tmp_path_factory.mktemp("ray") / "head.log"
    quiet = {**os.environ, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "OMP_NUM_THREADS": "1"}
    with log.open("wb") as file:
        process = subprocess.Popen(["nice", "-n", "10", *command], stdout=file, stderr=file, env=quiet, start_new_session=True)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for(address, process, log)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
        time.sleep(3)  # its children notice
        shutil.rmtree(folder, ignore_errors=True)


def wait_for(address, process, log):
    until = time.monotonic() + 120
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            if httpx.get(f"{address}/api/jobs/", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    pytest.fail(f"no Ray head in 120 s: {log.read_text()[-3000:]}")


def by_ray(address, action, **keywords):
    """What Ray's own client says."""
    done = subprocess.run(
        [PYTHON, str(CLIENT), address, action, json.dumps(keywords)],
        capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "RAY_DISABLE_IMPORT_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.fixture
async def jobs(head):
    made = RayJobs(Service("Ray", head))
    yield made
    await made.close()


async def until(jobs, name, *states):
    async with asyncio.timeout(120):
        while (told := await jobs.status(name)).state not in states:
            await asyncio.sleep(0.2)
    return told


def asked(line, name):
    return Submission(name, line, {"submitted_by": "nat-finetune"}, {"SAID": "hello"}, {})


async def test_submitted_followed_and_ended(head, jobs):
    assert (await jobs.version())[0] == "2"
    assert await jobs.find("nf-ended") is None
    await jobs.submit(asked("echo $SAID; sleep 1", "nf-ended"))
    told = await until(jobs, "nf-ended", JobState.COMPLETED, JobState.FAILED)
    assert (told.state, told.backend_state) == (JobState.COMPLETED, "SUCCEEDED")
    assert told.detail["driver_exit_code"] == 0
    assert "hello" in await jobs.logs("nf-ended")
    info = by_ray(head, "get_job_info", job_id="nf-ended")
    assert (info["status"], info["metadata"]["submitted_by"]) == ("SUCCEEDED", "nat-finetune")


async def test_failed(jobs):
    await jobs.submit(asked("echo it broke; exit 3", "nf-failed"))
    told = await until(jobs, "nf-failed", JobState.FAILED)
    assert told.detail["driver_exit_code"] == 3
    assert "exit code 3" in told.message


async def test_cancelled_and_deleted(jobs):
    await jobs.submit(asked("sleep 300", "nf-stopped"))
    await until(jobs, "nf-stopped", JobState.RUNNING)
    with pytest.raises(ServiceError, match="500"):
        await jobs.delete("nf-stopped")
    assert await jobs.stop("nf-stopped")
    assert (await until(jobs, "nf-stopped", JobState.CANCELLED)).backend_state == "STOPPED"
    assert await jobs.delete("nf-stopped")
    assert await jobs.find("nf-stopped") is None


async def test_an_id_is_taken_once(head, jobs):
    await jobs.submit(asked("sleep 1", "nf-once"))
    await jobs.submit(asked("sleep 1", "nf-once"))
    listed = httpx.get(f"{head}/api/jobs/").json()
    assert [job["submission_id"] for job in listed].count("nf-once") == 1
    refused = httpx.post(f"{head}/api/jobs/", json=asked("sleep 1", "nf-once").body(), timeout=60)
    assert refused.status_code in (400, 500)
    assert "already exists" in refused.text


async def test_a_whole_dpo_job(head, tmp_path):
    checkout = make_checkout(tmp_path / "rl", step_seconds=0.3)
    made = adapter(settings(checkout, launch={"name": "ray_jobs", "url": head}, timeout_seconds=200), tmp_path / "run")
    await made.health()
    spec = await made.prepare(collection(pairs(16)), None)
    seen = []
    told = await made.wait(await made.submit(spec), on_status=seen.append)
    assert told.state is JobState.COMPLETED
    result = await made.result(await made.find(spec))
    assert (result.optimiser_steps, Path(result.policy.location).name) == (4, "step_4")
    assert len(result.curve) == 4
    assert {status.backend_state for status in seen} >= {"RUNNING", "SUCCEEDED"}
    assert len(starts(checkout)) == 1
    await made.close()


async def test_a_dpo_job_that_fails_and_one_that_is_cancelled(head, tmp_path):
    checkout = make_checkout(tmp_path / "rl", fail="oom")
    made = adapter(settings(checkout, launch={"name": "ray_jobs", "url": head}, timeout_seconds=200), tmp_path / "run")
    spec = await made.prepare(collection(pairs(16)), None)
    told = await made.wait(await made.submit(spec))
    assert told.state is JobState.FAILED
    assert told.message.startswith("the GPU's memory was not enough")
    behave(checkout, hang="mid_run")
    other = await made.prepare(collection(pairs(16), step=1), None)
    ref = await made.submit(other)
    async with asyncio.timeout(120):
        while (await made.status(ref)).progress is None:
            await asyncio.sleep(0.2)
    await made.cancel(ref)
    assert (await made.status(ref)).backend_state == "STOPPED"
    await made.close()


async def test_requests_are_those_of_rays_own_client(tmp_path):
    """Both clients against one server: method, path and body of each request."""
    if PYTHON is None:
        pytest.skip(NO_RAY)
    environment = {"env_vars": {"K": "v"}}
    keywords = {"entrypoint": "sleep 0.2", "submission_id": "id", "metadata": {"a": "b"}, "runtime_env": environment}
    compared = {}
    with serving(RayServer(tmp_path / "theirs").app()) as theirs, serving(RayServer(tmp_path / "ours").app()) as ours:
        by_ray(theirs.url, "submit_job", **keywords, entrypoint_num_cpus=1)
        by_ray(theirs.url, "get_job_info", job_id="id")
        by_ray(theirs.url, "get_job_logs", job_id="id")
        by_ray(theirs.url, "stop_job", job_id="id")
        by_ray(theirs.url, "delete_job", job_id="id")
        jobs = RayJobs(Service("Ray", ours.url))
        await jobs.submit(Submission("id", "sleep 0.2", {"a": "b"}, {"K": "v"}, {}, num_cpus=1))
        await jobs.status("id")
        await jobs.logs("id")
        await jobs.stop("id")
        await jobs.delete("id")
        await jobs.close()
        for name, serving_it in (("theirs", theirs), ("ours", ours)):
            asked_for = [(r.method, r.path, r.json) for r in serving_it.requests if r.path != "/api/version"]
            compared[name] = [one for one in asked_for if one[1] != "/api/jobs/id" or one[0] != "GET"]
    assert compared["ours"] == compared["theirs"]
    assert (
        len(compared["ours"]) == 4
    )  # submit, logs, stop, delete; the status is a GET in both, ours asks one more before it submits
