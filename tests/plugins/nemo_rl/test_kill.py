"""`kill -9` of nat-finetune at ten points of a job: started once, found again, nothing lost."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugins.nemo_rl.drive import POINTS
from tests.plugins.nemo_rl.stock import make_checkout, starts

ROOT = Path(__file__).parents[3]


def drive(checkout, folder, point):
    arguments = [sys.executable, "-m", "tests.plugins.nemo_rl.drive", str(checkout), str(folder), point]
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
