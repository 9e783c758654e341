"""One update as a job, whatever goes wrong between this process and the backend."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from nat_finetune.errors import BackendError, Detached, Interrupted, JobGoesOn, ServiceError
from nat_finetune.remote.interfaces import RemoteAdapter
from nat_finetune.remote.records import JobRecord, JobRecords
from nat_finetune.runstore import RunStore
from nat_finetune.steps.job import SUBMISSIONS, Jobs
from nat_finetune.steps.serving import require_served, unserved
from nat_finetune.types import (
    Collection,
    JobSpec,
    JobState,
    PolicyRef,
    TrainingJobRef,
    TrainingJobStatus,
    UpdateResult,
)

COLLECTION = Collection((), "run", 2, "policy")
LOST = ServiceError("the connection was dropped", transient=True)
DONE = TrainingJobStatus(JobState.COMPLETED, 1.0, "", "completed", {"loss": 0.5})
FAILED = TrainingJobStatus(JobState.FAILED, 0.5, "out of memory", "failed")


class Cloud:
    """What is at the backend: it outlives adapters."""

    def __init__(self, *ends):
        self.keys = []
        self.ends = list(ends) or [DONE]


class Away:
    """A remote adapter of one process; `trouble` names what fails once, before or after it is done."""

    def __init__(self, cloud, *trouble, hangs=False, served=True):
        self.cloud, self.trouble, self.hangs, self.served = cloud, list(trouble), hangs, served
        self.waiting = asyncio.Event()

    def _fails(self, what):
        if what in self.trouble:
            self.trouble.remove(what)
            raise LOST

    async def health(self):
        pass

    async def prepare(self, collection, reference):
        return JobSpec(collection.run_id, collection.step, "key", "away", 1, {"version": 1})

    async def find(self, spec):
        self._fails("find")
        return self._ref(spec) if spec.key in self.cloud.keys else None

    async def submit(self, spec):
        self._fails("before submit")
        self.cloud.keys.append(spec.key)
        self._fails("after submit")
        return self._ref(spec)

    async def status(self, ref):
        return self.cloud.ends[min(self._number(ref), len(self.cloud.ends)) - 1]

    async def wait(self, ref, *, on_status=None):
        self._fails("wait")
        self.waiting.set()
        if self.hangs:
            await asyncio.Event().wait()
        if "timeout" in self.trouble:
            raise JobGoesOn("it takes long")
        status = await self.status(ref)
        on_status(status)
        return status

    async def cancel(self, ref):
        self.cloud.ends = [TrainingJobStatus(JobState.CANCELLED, None, "", "cancelled")]

    async def logs(self, ref):
        self._fails("logs")
        return [f"line {n}" for n in range(30)]

    async def result(self, ref):
        self._fails("result")
        status = await self.status(ref)
        if status.state is not JobState.COMPLETED:
            raise BackendError(f"the job failed: {status.message}")
        return UpdateResult(PolicyRef("policy", 1), None, None, None, dict(status.metrics), 1.0, backend={"output_model": "m"})

    def serving(self):
        return self.served

    def save_state(self, folder):
        pass

    def load_state(self, folder):
        pass

    def _number(self, ref):
        return self.cloud.keys.index(ref.key) + 1

    def _ref(self, spec):
        return TrainingJobRef(f"job-{self.cloud.keys.index(spec.key) + 1}", spec.key, "away")


@pytest.fixture
def store(tmp_path):
    return RunStore.create(tmp_path / "run")


def jobs(adapter, store, **given):
    async def no_wait(seconds):
        pass

    return Jobs(adapter, store, sleep=no_wait, **given)


async def test_recorded_before_it_is_sent_and_at_its_end(store):
    cloud, seen = Cloud(), []

    class Watched(Away):
        async def submit(self, spec):
            seen.append(JobRecords(store).read(2))
            return await super().submit(spec)

    assert isinstance(Watched(cloud), RemoteAdapter)
    result, _ = await jobs(Watched(cloud), store).run(COLLECTION, None)
    (before,) = seen
    assert (before.spec.key, before.ref, before.outlives) == ("key", None, True)
    record = JobRecords(store).read(2)
    assert (record.ref.job_id, record.status, len(record.logs)) == ("job-1", DONE, 20)
    assert record.submitted_at
    assert record.ended_at
    assert result.backend["output_model"] == "m"
    assert (result.backend["status"], result.backend["losses"]) == ("completed", {"loss": 0.5})
    assert store.update_result(2) == result


@pytest.mark.parametrize("trouble", ["before submit", "after submit"])
async def test_a_submission_that_may_have_arrived_is_looked_for_first(store, trouble):
    cloud = Cloud()
    await jobs(Away(cloud, trouble), store).run(COLLECTION, None)
    assert cloud.keys == ["key"]


async def test_submissions_end_and_a_resume_asks_again(store):
    cloud = Cloud()
    with pytest.raises(ServiceError):
        await jobs(Away(cloud, *["before submit"] * SUBMISSIONS), store).run(COLLECTION, None)
    assert JobRecords(store).read(2).ref is None
    await jobs(Away(cloud), store).run(COLLECTION, None)
    assert cloud.keys == ["key"]


@pytest.mark.parametrize("trouble", ["after submit find", "wait", "result"])
async def test_after_any_failure_a_resume_re_attaches(store, trouble):
    cloud = Cloud()
    broken = Away(cloud, *([trouble] if trouble in ("wait", "result") else ["after submit", "find"]))
    with pytest.raises(BackendError):
        await jobs(broken, store).run(COLLECTION, None)
    result, _ = await jobs(Away(cloud), store).run(COLLECTION, None)
    assert cloud.keys == ["key"]
    assert result.policy.version == 1


async def test_a_job_that_failed_is_submitted_anew_by_a_resume_under_another_key(store):
    cloud = Cloud(FAILED, FAILED, DONE)
    for _ in range(2):
        with pytest.raises(
            BackendError, match=r"out of memory\nTo send it anew, .*run --resume .*\nthe backend's last lines:\n  line 10\n"
        ):
            await jobs(Away(cloud), store).run(COLLECTION, None)
    await jobs(Away(cloud), store).run(COLLECTION, None)
    assert len(cloud.keys) == len(set(cloud.keys)) == 3
    assert [ref.job_id for ref in JobRecords(store).read(2).earlier] == ["job-1", "job-2"]


class Streamed(Away):
    """Its jobs end with the process that reads them, unless they are done."""

    async def lost(self, ref):
        return (await self.status(ref)).state is JobState.RUNNING


@pytest.mark.parametrize(("left", "keys"), [(TrainingJobStatus(JobState.RUNNING), 2), (DONE, 1)])
async def test_a_stream_that_nobody_reads_any_more_is_sent_anew_unless_it_was_done(store, left, keys):
    cloud = Cloud(left, DONE)
    with pytest.raises(ServiceError):
        await jobs(Streamed(cloud, "wait"), store).run(COLLECTION, None)
    result, _ = await jobs(Streamed(cloud), store).run(COLLECTION, None)
    assert (len(cloud.keys), result.policy.version) == (keys, 1)
    assert [ref.job_id for ref in JobRecords(store).read(2).earlier] == ["job-1"][: keys - 1]


async def test_a_log_that_can_t_be_had_does_not_hide_the_failure(store):
    with pytest.raises(BackendError, match="out of memory"):
        await jobs(Away(Cloud(FAILED), "logs"), store).run(COLLECTION, None)


async def test_after_the_end_of_the_job_a_failed_result_says_how_to_go_on(store):
    with pytest.raises(BackendError, match=f"dropped. To go on: nat-finetune jobs attach {store.folder}"):
        await jobs(Away(Cloud(), "result"), store).run(COLLECTION, None)


async def test_without_waiting_it_detaches_once_and_is_waited_for_afterwards(store):
    cloud = Cloud()
    with pytest.raises(Detached, match=f"nat-finetune jobs attach {store.folder}"):
        await jobs(Away(cloud), store).run(COLLECTION, None, wait=False)
    await jobs(Away(cloud), store).run(COLLECTION, None, wait=False)
    assert cloud.keys == ["key"]


async def test_a_timeout_says_how_to_attach(store):
    with pytest.raises(JobGoesOn, match=r"it takes long\. To go on: nat-finetune jobs attach"):
        await jobs(Away(Cloud(), "timeout"), store).run(COLLECTION, None)


@pytest.mark.parametrize(("cancel", "error"), [(False, Detached), (True, Interrupted)])
async def test_interrupted_it_is_left_or_cancelled(store, cancel, error):
    cloud, asked = Cloud(), []

    def wanted(job):
        asked.append(job)
        return cancel

    adapter = Away(cloud, hangs=True)
    task = asyncio.create_task(jobs(adapter, store, cancel_wanted=wanted).run(COLLECTION, None))
    await adapter.waiting.wait()
    task.cancel()
    with pytest.raises(error):
        await task
    assert asked == ["job job-1 of step 2"]
    assert (cloud.ends[0].state is JobState.CANCELLED) == cancel


def test_only_items_of_a_job_that_outlives_the_process_are_held(store):
    records = JobRecords(store)
    records.write(JobRecord(JobSpec("run", 1, "k", "here", 1)))
    assert not jobs(Away(Cloud()), store).submitted_from(0)
    records.write(JobRecord(JobSpec("run", 2, "k", "away", 1), outlives=True))
    assert [jobs(Away(Cloud()), store).submitted_from(step) for step in (0, 2, 3)] == [True, True, False]


def test_what_is_not_served_is_said_with_the_adapter_s_reason(store):
    trained, here = PolicyRef("policy", 1), Away(Cloud(), served=False)
    assert unserved(here, replace(trained, version=0), store) is None
    assert unserved(Away(Cloud()), trained, store) is None
    assert unserved(here, trained, store) == "the trained model is not served: llms.policy does not reach it"
    told = {"not_served": "deploy_on_completion is off"}
    store.save_update(0, UpdateResult(trained, None, None, None, {}, 0.0, backend=told))
    with pytest.raises(BackendError, match="not served: deploy_on_completion is off"):
        require_served(here, trained, store)
