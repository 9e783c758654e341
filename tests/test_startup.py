"""Commands that answer at once do: well under a second of processor time, which does not depend on what else runs here."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from tests.source_tree import ROOT

PROGRAM = "import sys; from nat_finetune.cli.main import main; sys.exit(main())"


def cpu_seconds(*arguments: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stdout + done.stderr
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize("arguments", [("--help",), ("list",), ("validate", "configs/grpo_tic_tac_toe.yml")], ids=" ".join)
def test_answers_in_under_a_second(arguments):
    assert min(cpu_seconds(*arguments) for _ in range(2)) < 1.0


def test_a_quick_look_loads_no_torch():
    program = PROGRAM.replace("sys.exit(main())", "code = main(); sys.exit(code or 3 * ('torch' in sys.modules))")
    looked = [
        sys.executable,
        "-c",
        program,
        "doctor",
        "--quick",
        "configs/grpo_tic_tac_toe.yml",
        "-o",
        "llms.policy.device=cpu",
    ]
    done = subprocess.run(looked, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "memory.estimate" in done.stdout
