"""kill -9 at chosen points of a remote run, then a resume in another process: re-attached, nothing submitted twice or lost."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager

import pytest

from nat_finetune.remote.records import JobRecords
from nat_finetune.runstore import RunStore
from nat_finetune.testing.serving import serving
from tests.e2e.backends import BACKENDS, SECRET
from tests.e2e.remote import KILL, MAIN, REHEARSAL, install
from tests.source_tree import ROOT

POINTS = {
    "before the spec is written": ("before-file", r"^jobs/", 1),
    "after the spec is written": ("after-file", r"^jobs/", 1),
    "before the job's request": ("before-request", "SUBMISSION", 1),
    "after the job's request": ("after-answer", "SUBMISSION", 1),
    "before the reference is written": ("before-file", r"^jobs/", 2),
    "after the reference is written": ("after-file", r"^jobs/", 2),
    "while it is followed": ("before-file", r"^jobs/", 4),
    "before its end is written": ("before-file", r"^updates/", 1),
    "before the checkpoint counts": ("before-file", r"^state.json$", 2),
    "after the checkpoint counts": ("after-file", r"^state.json$", 2),
    "before the test set is measured": ("before-file", r"^evaluations/test-after", 1),
    "before the report": ("before-file", r"^report.json$", 1),
}
QUICK = ("after the job's request",)


class Runs:
    """Runs of one backend in processes of their own."""

    def __init__(self, backend, folder, server) -> None:
        self.backend, self.folder, self.server = backend, folder, server
        self.console = ""

    def start(self, kill=None):
        arguments = ["run", str(self.backend.config), "--output-dir", str(self.folder / "runs")]
        for option in self.backend.options(self.server.url, self.server.url, self.folder):
            arguments += ["-o", option]
        return self.cli(*arguments, kill=kill)

    def cli(self, *arguments, kill=None):
        script = (
            [MAIN] if kill is None else [KILL, kill[0], kill[1].replace("SUBMISSION", self.backend.submission), str(kill[2])]
        )
        paths = f"{self.folder / 'installed'}:{REHEARSAL}"
        environment = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, "NO_PROXY": "127.0.0.1"}
        done = subprocess.run(
            [sys.executable, "-c", *script, *arguments],
            env=environment | self.backend.environment, capture_output=True, text=True, timeout=180, check=False, cwd=ROOT,
        )  # fmt: skip
        self.console += done.stdout + done.stderr
        return done

    @property
    def run(self):
        (run,) = (self.folder / "runs").iterdir()
        return run


@contextmanager
def runs_of(name, folder):
    backend = next(b for b in BACKENDS if b.name == name)
    install(folder)
    (folder / "server").mkdir()
    with serving(backend.app(folder / "server")) as server:
        runs = Runs(backend, folder, server)
        yield runs
    written = [path for path in (folder / "runs").rglob("*") if path.is_file()]
    assert [str(path) for path in written if SECRET.encode() in path.read_bytes()] == []
    assert SECRET not in runs.console


def killed_and_resumed(name, point, folder):
    with runs_of(name, folder) as runs:
        killed = runs.start(kill=POINTS[point])
        assert killed.returncode == -9, f"{point}: it was not killed: {killed.stdout}{killed.stderr}"
        store = RunStore.open(runs.run)
        before = [rollout.rollout_id for _, rollout in store.counted_rollouts()]
        resumed = runs.cli("run", "--resume", str(runs.run))
        assert resumed.returncode == 0, f"{point}: {resumed.stdout}{resumed.stderr}"
        assert runs.backend.started(folder / "server") == 1, f"{point}: submitted twice"
        report = json.loads((runs.run / "report.json").read_text())
        assert report["exit_code"] == 0
        assert [part["status"] for part in report["backend"]] == [JobRecords(store).read(0).status.backend_state]
        assert all(row["after"]["mean"] is not None for row in report["metrics"].values())
        after = [rollout.rollout_id for _, rollout in store.counted_rollouts()]
        assert len(after) == len(set(after))
        assert set(before) <= set(after)


@pytest.mark.parametrize("point", QUICK)
def test_killed_once(point, tmp_path):
    killed_and_resumed("rehearsal", point, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("name", [backend.name for backend in BACKENDS])
def test_killed_anywhere(name, point, tmp_path):
    killed_and_resumed(name, point, tmp_path)
