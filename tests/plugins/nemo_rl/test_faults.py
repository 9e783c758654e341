"""Faults between the adapter and Ray: every kind at every request; the job runs once, and its result arrives."""

from pathlib import Path

import pytest

from nat_finetune.runstore import RunStore
from nat_finetune.steps.job import Jobs
from nat_finetune.testing.faults import Fault, FaultKind, faulty
from nat_finetune.testing.ray_server import RayServer
from nat_finetune.testing.serving import serving
from tests.plugins.nemo_rl.made import adapter, collection, pairs, settings
from tests.plugins.nemo_rl.stock import make_checkout, starts

FAULTS = {
    "dropped before": {"kind": FaultKind.DROP_BEFORE},
    "dropped after": {"kind": FaultKind.DROP_AFTER},
    "500": {"kind": FaultKind.STATUS, "code": 500},
    "500 though processed": {"kind": FaultKind.STATUS_AFTER, "code": 500},
    "429": {"kind": FaultKind.STATUS, "code": 429, "headers": {"Retry-After": "0"}},
    "503": {"kind": FaultKind.STATUS, "code": 503},
    "slow": {"kind": FaultKind.SLOW},
    "half": {"kind": FaultKind.HALF_STREAM},
    "truncated": {"kind": FaultKind.TRUNCATED_JSON},
    "restart": {"kind": FaultKind.RESTART},
}
REQUESTS = {
    "version": "GET /api/version",
    "submit": "POST /api/jobs/",
    "first question": r"GET /api/jobs/nat-finetune-\w+$",
    "logs": "GET .*/logs$",
}
QUICK = {("dropped after", "submit"), ("500 though processed", "submit"), ("truncated", "logs"), ("restart", "first question")}
CASES = [
    pytest.param(fault, request, marks=[] if (fault, request) in QUICK else [pytest.mark.slow], id=f"{fault}, {request}")
    for fault in FAULTS
    for request in REQUESTS
]


@pytest.mark.parametrize(("fault", "request_"), CASES)
async def test_one_fault(tmp_path, fault, request_):
    broken = Fault(match=REQUESTS[request_], **FAULTS[fault])
    await runs_once(tmp_path, broken)


@pytest.mark.slow
async def test_a_status_that_nobody_knows_is_waited_through(tmp_path):
    def unknown(job):
        return {**job, "status": "MIGRATING"}

    seen = await runs_once(
        tmp_path, Fault(FaultKind.REWRITE, match=r"GET /api/jobs/nat-finetune-\w+$", times=4, change=unknown)
    )
    assert seen >= 4


async def runs_once(tmp_path, *faults):
    """How often a fault came to pass."""
    checkout = make_checkout(tmp_path / "rl", step_seconds=0.1)
    with serving(RayServer(tmp_path / "ray").app()) as ray, faulty(ray.url, *faults) as proxy:
        launch = {"name": "ray_jobs", "url": proxy.url}
        made = adapter(settings(checkout, launch=launch), tmp_path / "run")
        (tmp_path / "run").mkdir()
        result, _ = await Jobs(made, RunStore(tmp_path / "run")).run(collection(pairs(10)), None)
        await made.close()
        spent = sum(passed.fault is not None for passed in proxy.seen)
    assert spent >= 1
    assert Path(result.policy.location).name == "step_2"
    assert len(starts(checkout)) == 1
    return spent
