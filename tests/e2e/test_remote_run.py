"""A run whose update is made elsewhere: from another process, a crash or a day later it is found again."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest

from nat_finetune.remote.records import JobRecords
from nat_finetune.runstore import RunStore
from tests.e2e.remote import MAIN, REHEARSAL, Kill, rehearsal_site


@pytest.fixture
def site(tmp_path):
    with rehearsal_site(tmp_path) as made:
        yield made
    assert made.leaks() == []


def test_a_run_to_its_end_says_what_the_backend_did(site):
    done = site.start()
    assert done.returncode == 0, done.stderr
    assert "step 0 · job job-1 · warming_up (a status that nat-finetune does not know)" in done.stdout
    assert "step 0 · job job-1 · running, 50%, loss 0.7" in done.stdout
    (part,) = site.report["backend"]
    assert (part["job_id"], part["status"], part["output_model"]) == ("job-1", "completed", "trained-job-1")
    assert part["losses"] == {"loss": 0.25}
    assert part["logs"] == ["loading", "epoch 1", "done"]
    assert site.report["metrics"]["even"]["after"]["mean"] == 1.0  # measured on the deployed model, which says even numbers
    assert site.report["steps"][0]["tokens"]["trained"] is None
    page = (site.run / "report.html").read_text()
    assert "trained-job-1" in page
    assert len(site.jobs) == 1


def test_what_is_not_served_is_not_measured(site):
    done = site.start("trainer_adapters.away.deploy=false")
    assert done.returncode == 0, done.stderr
    why = "the trained model is not served: deploy is off"
    assert f"warning: the trained model was not measured: {why}" in done.stdout
    report = site.report
    assert (report["exit_reason"], report["headline"]) == ("not measured", f"not measured: {why}")
    assert report["metrics"]["even"]["after"] is None
    assert [point["policy_version"] for point in report["validations"]] == [0]
    assert report["backend"][0]["commands"] == ["deploy trained-job-1"]
    asked = site.cli("eval", str(site.run))
    assert asked.returncode == 6
    assert why in asked.stderr
    exported = site.cli("export", str(site.run), "trained")
    assert exported.returncode == 6
    assert "has no weights here to export: rehearsal keeps what it trained: trained-job-1" in exported.stderr
    assert exported.stderr.endswith("to go on with it:\n  deploy trained-job-1\n")


@pytest.mark.slow
def test_a_second_step_is_not_collected_from_the_untrained_model(site):
    done = site.start("trainer_adapters.away.deploy=false", "finetuning.num_epochs=2")
    assert done.returncode == 6
    assert "would be those of the untrained model" in done.stderr
    assert len(site.jobs) == 1


def test_detached_and_attached_again(site):
    done = site.start("trainers.once.wait_for_completion=false")
    assert done.returncode == 7, done.stderr
    assert f"To go on: nat-finetune jobs attach {site.run}" in done.stderr
    assert site.report["exit_reason"] == "Detached"
    attached = site.cli("jobs", "attach", str(site.run))
    assert attached.returncode == 0, attached.stderr
    assert len(site.jobs) == 1
    assert site.report["exit_code"] == 0


@pytest.mark.slow
def test_a_failure_tells_the_backend_s_reason_and_a_resume_submits_anew(site):
    site.set("fails")
    done = site.start()
    assert done.returncode == 6
    assert "job job-1 failed: out of memory on node 3" in done.stderr
    assert "torch.OutOfMemoryError" in done.stderr
    assert "torch.OutOfMemoryError" in site.report["message"]
    assert site.report["backend"][0]["message"] == "out of memory on node 3"
    again = site.cli("jobs", "attach", str(site.run))
    assert again.returncode == 6
    assert "run --resume" in again.stderr
    assert len(site.jobs) == 1
    site.unset("fails")
    resumed = site.cli("run", "--resume", str(site.run))
    assert resumed.returncode == 0, resumed.stderr
    assert [job["id"] for job in site.jobs] == ["job-1", "job-2"]
    assert len({job["name"] for job in site.jobs}) == 2
    assert site.report["backend"][0]["earlier_jobs"] == ["job-1"]


@pytest.mark.slow
def test_a_job_that_never_ends_meets_the_timeout(site):
    site.set("never-ends")
    done = site.start("trainer_adapters.away.timeout=0.5")
    assert done.returncode == 7
    assert "has not ended in 0.5 s: it is running, 50%, loss 0.7" in done.stderr
    assert f"nat-finetune jobs attach {site.run}" in done.stderr
    assert site.cli("jobs", "cancel", str(site.run)).stdout.startswith("step 0 · job job-1 · cancelled")
    assert site.jobs[0]["cancelled"]


@pytest.mark.parametrize("answer", ["d", *(pytest.param(answer, marks=pytest.mark.slow) for answer in (None, "c"))])
def test_ctrl_c_detaches_or_asks_on_a_terminal(site, answer):
    site.set("never-ends")
    arguments = ["run", str(REHEARSAL / "rehearsal.yml"), "--output-dir", str(site.folder / "runs")]
    inside, outside = pty.openpty()
    given = {} if answer is None else {"stdin": outside, "stdout": outside}
    given = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE} | given
    running = subprocess.Popen(
        [sys.executable, "-c", MAIN, *arguments], env=site.environment(), stderr=subprocess.PIPE, text=True, **given
    )
    seen = bytearray()
    threading.Thread(target=drain, args=(inside, seen), daemon=True).start()
    try:
        wait_until(lambda: site.jobs and site.jobs[0]["asked"] > 3)
        running.send_signal(signal.SIGINT)
        if answer is not None:
            wait_until(lambda: b"[d]etach" in seen)
            os.write(inside, f"{answer}\n".encode())
        error = running.communicate(timeout=30)[1]
    finally:
        running.kill()
        os.close(inside)
        os.close(outside)
    if answer == "c":
        assert running.returncode == 130, error
        assert "is cancelled" in error
    else:
        assert running.returncode == 7, error
        assert f"nat-finetune jobs attach {site.run}" in error
    assert site.jobs[0]["cancelled"] == (answer == "c")


@pytest.mark.slow
def test_other_processes_ask_about_the_job(site):
    assert site.start("trainers.once.wait_for_completion=false").returncode == 7
    listed = site.cli("jobs", "list", str(site.folder / "runs"), "--json")
    assert [job["job_id"] for job in json.loads(listed.stdout)] == ["job-1"]
    asked = site.cli("jobs", "status", str(site.run))
    assert asked.stdout == "step 0 · job job-1 · created\n"
    assert site.cli("jobs", "logs", str(site.run)).stdout == "loading\nepoch 1\ndone\n"
    assert site.cli("jobs", "attach", str(site.run)).returncode == 0
    again = site.cli("eval", str(site.run))
    assert "1.000" in again.stdout
    assert len(site.jobs) == 1


@pytest.mark.slow
def test_a_plan_starts_no_job(site):
    config = site.folder / "config"
    config.mkdir()
    for path in REHEARSAL.iterdir():
        if path.is_file():
            (config / path.name).write_bytes(path.read_bytes())
    for command in ("validate", "plan", "doctor", "lock"):
        done = site.cli(command, str(config / "rehearsal.yml"))
        assert done.returncode == 0, command + done.stdout + done.stderr
        if command == "plan":
            assert "starts no job of a remote backend" in done.stdout
            assert "tokens:" not in done.stdout  # the endpoint does not say, and 0 would be wrong
    assert site.cli("smoke", str(config / "rehearsal.yml")).returncode == 2
    assert site.jobs == []


@pytest.mark.slow
def test_killed_with_the_answer_on_its_way_the_job_is_found_again(site):
    killed = site.start(kill=Kill("after-answer", "POST /v1/jobs$"))
    assert killed.returncode == -9
    record = JobRecords(RunStore.open(site.run)).read(0)
    assert (record.ref, len(site.jobs)) == (None, 1)
    attached = site.cli("jobs", "attach", str(site.run))
    assert attached.returncode == 0, attached.stderr
    assert len(site.jobs) == 1


def wait_until(true):
    for _ in range(600):
        if true():
            return
        time.sleep(0.05)
    raise AssertionError("it did not come about in 30 s")


def drain(file, seen):
    """Read a terminal, as one that shows it does: a full one would stop the run."""
    with suppress(OSError):
        while block := os.read(file, 4096):
            seen.extend(block)
