"""Jobs through Ray's API, against a server that speaks it."""

import asyncio
import dataclasses
import json
from pathlib import Path

import pytest
from nat_finetune_plugins.nemo_rl.ray_jobs import RayJobs, Submission

from nat_finetune.errors import BackendError, ConfigError, ServiceError
from nat_finetune.remote.http import Service
from nat_finetune.testing.ray_server import RayServer
from nat_finetune.testing.serving import serving
from nat_finetune.types import JobState
from tests.plugins.nemo_rl.made import adapter, collection, pairs, settings
from tests.plugins.nemo_rl.stock import behave, make_checkout, starts

TOKEN = "a-token-of-the-cluster"


@pytest.fixture
def server(tmp_path):
    return RayServer(tmp_path / "ray", token=TOKEN)


@pytest.fixture
def ray(server):
    with serving(server.app()) as running:
        yield running


@pytest.fixture
async def jobs(ray):
    made = RayJobs(Service("Ray", ray.url, headers={"Authorization": f"Bearer {TOKEN}"}, secrets=[TOKEN]))
    yield made
    await made.close()


@pytest.fixture
def checkout(tmp_path):
    return make_checkout(tmp_path / "rl")


def on_ray(checkout, ray, **more):
    return settings(checkout, launch={"name": "ray_jobs", "url": ray.url, "token": TOKEN}, **more)


def asked(line, name="one"):
    return Submission(name, line, {"nat_finetune_key": "k"}, {"SAID": "hello"}, {})


async def until(jobs, name, state):
    async with asyncio.timeout(20):
        while (told := await jobs.status(name)).state is not state:
            assert told.state in (JobState.PENDING, JobState.RUNNING), told
            await asyncio.sleep(0.02)
    return told


async def test_submitted_followed_and_ended(jobs):
    assert await jobs.version() == "2.60.0"
    assert await jobs.find("one") is None
    await jobs.submit(asked("echo $SAID; sleep 0.2"))
    told = await until(jobs, "one", JobState.COMPLETED)
    assert told.backend_state == "SUCCEEDED"
    assert told.detail["driver_exit_code"] == 0
    assert await jobs.logs("one") == "hello\n"


async def test_a_failure_has_its_message(jobs):
    await jobs.submit(asked("echo broken; exit 3"))
    told = await until(jobs, "one", JobState.FAILED)
    assert "exit code 3" in told.message
    assert "broken" in told.message


async def test_the_same_id_is_submitted_once(jobs, ray):
    await jobs.submit(asked("sleep 0.1"))
    await jobs.submit(asked("sleep 0.1"))
    assert len(ray.of("POST", "/api/jobs/")) == 1


async def test_an_id_that_somebody_else_took_meanwhile(jobs, monkeypatch):
    """Between the question and the post: Ray refuses, and the job is there."""
    await jobs.submit(asked("sleep 0.1"))
    find, asked_before = jobs.find, []

    async def blind_at_first(name):
        asked_before.append(name)
        return None if len(asked_before) == 1 else await find(name)

    monkeypatch.setattr(jobs, "find", blind_at_first)
    await jobs.submit(asked("sleep 0.1"))
    assert len(asked_before) == 2


async def test_what_ray_refuses_is_told(jobs):
    wrong = dataclasses.replace(asked("true"), metadata={"step": 1})
    with pytest.raises(ServiceError, match="metadata values must be strings"):
        await jobs.submit(wrong)


async def test_stopped_and_deleted(jobs):
    await jobs.submit(asked("sleep 60"))
    await until(jobs, "one", JobState.RUNNING)
    with pytest.raises(ServiceError, match="non-terminal state"):
        await jobs.delete("one")
    assert await jobs.stop("one")
    await until(jobs, "one", JobState.CANCELLED)
    assert not await jobs.stop("one")
    assert await jobs.delete("one")
    assert await jobs.find("one") is None
    assert not await jobs.delete("one")


async def test_every_word_of_rays_and_one_that_is_not(jobs, server):
    await jobs.submit(asked("sleep 0.05"))
    states = {}
    for word in ("PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED", "SUSPENDED"):
        server.set_status("one", word)
        told = await jobs.status("one")
        assert told.backend_state == word
        states[word] = told.state
    assert list(states.values()) == [
        JobState.PENDING,
        JobState.RUNNING,
        JobState.CANCELLED,
        JobState.COMPLETED,
        JobState.FAILED,
        JobState.UNKNOWN,
    ]


async def test_a_job_that_ray_forgot_has_failed(jobs):
    told = await jobs.status("never")
    assert told.state is JobState.FAILED
    assert "jobs end with the cluster" in told.message


async def test_a_404_that_is_not_rays_says_nothing_of_the_job():
    async def proxy(scope, receive, send):
        await send({"type": "http.response.start", "status": 404, "headers": [(b"content-type", b"text/html")]})
        await send({"type": "http.response.body", "body": b"<html>no such route</html>"})

    with serving(proxy) as running:
        jobs = RayJobs(Service("Ray", running.url))
        with pytest.raises(BackendError, match="404 from something that is not Ray: <html>no such route"):
            await jobs.status("mine")
        await jobs.close()


async def test_a_wrong_token(ray):
    jobs = RayJobs(Service("Ray", ray.url, headers={"Authorization": "Bearer wrong-token"}))
    with pytest.raises(ServiceError, match="401") as refused:
        await jobs.version()
    assert "wrong-token" not in str(refused.value)
    await jobs.close()


async def test_another_service_is_not_ray(tmp_path):
    async def other(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": b"{}"})

    with serving(other) as running:
        jobs = RayJobs(Service("Ray", running.url))
        with pytest.raises(BackendError, match="does not answer as Ray's Jobs API does"):
            await jobs.version()
        await jobs.close()


# ------------------------------------------------------------------------------------------------------------- the adapter


async def test_from_pairs_to_a_checkpoint(checkout, ray, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf-secret-of-the-user")
    made = adapter(on_ray(checkout, ray, env_vars=["HF_TOKEN"]), tmp_path / "run")
    await made.health()
    spec = await made.prepare(collection(pairs(10)), None)
    ref = await made.submit(spec)
    assert (await made.wait(ref)).backend_state == "SUCCEEDED"
    result = await made.result(ref)
    assert Path(result.policy.location).name == "step_2"
    assert result.backend["hosts"] == [ray.url]
    assert result.seconds > 0
    posted = ray.of("POST", "/api/jobs/")
    assert len(posted) == 1
    body = posted[0].json
    assert body["submission_id"] == f"nat-finetune-{spec.key[:32]}"
    assert body["runtime_env"] == {"env_vars": {"HF_TOKEN": "hf-secret-of-the-user"}}
    for kept in (spec, ref, result, *(path.read_text(errors="replace") for path in (tmp_path / "run").rglob("*.*"))):
        assert "hf-secret" not in repr(kept)
        assert TOKEN not in repr(kept)
    await made.close()


async def test_another_process_finds_and_cancels_it(checkout, ray, tmp_path):
    behave(checkout, hang="mid_run")
    first = adapter(on_ray(checkout, ray), tmp_path / "run")
    spec = await first.prepare(collection(pairs(10)), None)
    await first.submit(spec)
    await first.close()
    second = adapter(on_ray(checkout, ray), tmp_path / "run")
    ref = await second.find(spec)
    assert ref is not None
    assert await second.submit(spec) == ref
    async with asyncio.timeout(20):
        while (await second.status(ref)).progress is None:
            await asyncio.sleep(0.05)
    assert (await second.status(ref)).progress == 0.5
    await second.cancel(ref)
    assert (await second.status(ref)).state is JobState.CANCELLED
    assert len(starts(checkout)) == 1
    assert any("Taking a training step" in line for line in await second.logs(ref))
    await second.close()


async def test_a_failure_on_ray_is_told_with_its_reason(checkout, ray, tmp_path):
    behave(checkout, fail="oom")
    made = adapter(on_ray(checkout, ray), tmp_path / "run")
    ref = await made.submit(await made.prepare(collection(pairs(10)), None))
    told = await made.wait(ref)
    assert told.message.startswith("the GPU's memory was not enough")
    await made.close()


def test_variables_that_are_not_there_are_named(checkout, ray, tmp_path, monkeypatch):
    monkeypatch.delenv("NOT_THERE", raising=False)
    with pytest.raises(ConfigError, match="NOT_THERE"):
        adapter(on_ray(checkout, ray, env_vars=["NOT_THERE"]), tmp_path / "run")


def test_the_key_is_not_shown_by_the_config(checkout, ray):
    assert TOKEN not in json.dumps(on_ray(checkout, ray).model_dump(mode="json"))
