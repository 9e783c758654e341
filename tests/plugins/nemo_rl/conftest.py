"""No job outlives its test, also where the test fails: outliving is what these jobs are made for."""

import os
import signal
from contextlib import suppress

import pytest

from nat_finetune.remote import process


@pytest.fixture(autouse=True)
def _no_job_is_left(tmp_path):
    yield
    for claim in tmp_path.rglob("claim/process"):
        who = process.read_who(claim.parents[1])
        if process.look(claim.parents[1], who).running:
            with suppress(ProcessLookupError):
                os.killpg(who.group, signal.SIGKILL)
