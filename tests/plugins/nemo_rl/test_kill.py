"""`kill -9` of nat-finetune at ten points of a job: started once, found again, nothing lost."""

import subprocess
import sys
from pathlib import Path

import pytest

from nat_finetune.testing.ray_server import RayServer
from nat_finetune.testing.serving import serving
from tests.plugins.nemo_rl.drive import POINTS
from tests.plugins.nemo_rl.stock import make_checkout, starts

ROOT = Path(__file__).parents[3]


def drive(checkout, folder, point, *ray):
    arguments = [sys.executable, "-m", "tests.plugins.nemo_rl.drive", str(checkout), str(folder), point, *ray]
    return subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


QUICK = {"after the claim"}
"""The others take as long again, and are run with the slow tests."""


@pytest.mark.parametrize(
    "point", [point if point in QUICK else pytest.param(point, marks=pytest.mark.slow) for point in POINTS]
)
def test_killed_and_attached_again(tmp_path, point):
    checkout = make_checkout(tmp_path / "rl", step_seconds=0.3)
    folder = tmp_path / "run"
    folder.mkdir()
    assert drive(checkout, folder, point).returncode == -9
    assert not (folder / "result").exists()
    done = drive(checkout, folder, "never")
    assert done.returncode == 0, done.stderr
    assert Path((folder / "result").read_text()).name == "step_2"
    assert len(starts(checkout)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_killed_and_attached_again_on_ray(tmp_path, point):
    checkout = make_checkout(tmp_path / "rl", step_seconds=0.3)
    folder = tmp_path / "run"
    folder.mkdir()
    with serving(RayServer(tmp_path / "ray").app()) as ray:
        assert drive(checkout, folder, point, ray.url).returncode == -9
        assert not (folder / "result").exists()
        done = drive(checkout, folder, "never", ray.url)
        posted = ray.of("POST", "/api/jobs/")
    assert done.returncode == 0, done.stderr
    assert len(starts(checkout)) == 1
    assert len(posted) == 1
