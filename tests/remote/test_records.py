"""Job records come back as they were written."""

from __future__ import annotations

import pytest

from nat_finetune.errors import BackendError, OutputError
from nat_finetune.remote.records import JobRecord, JobRecords, attach_command
from nat_finetune.remote.target import Served
from nat_finetune.runstore import RunStore
from nat_finetune.types import Dropped, DropReason, JobSpec, JobState, PolicyRef, TrainingJobRef, TrainingJobStatus

SPEC = JobSpec("run", 3, "k", "a", 2, {"hosts": ["h"]}, (Dropped("pair", DropReason.TOO_LONG, "9 tokens"),))


def test_records(tmp_path):
    records = JobRecords(RunStore.create(tmp_path / "my run"))
    assert records.read(3) is None
    record = JobRecord(
        SPEC, TrainingJobRef("j", "k", "a"), TrainingJobStatus(JobState.RUNNING, None, metrics={"loss": 1.0}), "t"
    )
    records.write(record)
    records.write(JobRecord(SPEC.__class__("run", 11, "k2", "a", 1)))
    assert records.read(3) == record
    assert [found.spec.step for found in records.all()] == [3, 11]
    (tmp_path / "my run/jobs/00003 copy.json").write_text("mine")
    assert [found.spec.step for found in records.all()] == [3, 11]
    assert attach_command(tmp_path / "my run").endswith("my run'")
    (tmp_path / "my run/jobs/00003.json").write_text('{"spec": 1}')
    with pytest.raises(OutputError, match=r"00003\.json"):
        records.read(3)


def test_where_a_model_is_served(tmp_path):
    served = Served(PolicyRef("policy", 2), "ns/m@cust-1", "http://127.0.0.1:1/v1")
    served.save(tmp_path)
    assert Served.load(tmp_path) == served
    (tmp_path / "served.json").write_text("[]")
    with pytest.raises(BackendError, match=r"served\.json"):
        Served.load(tmp_path)
