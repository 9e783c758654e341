"""Following a job: unknown words, null progress, failures in a row, and an end in any case."""

from __future__ import annotations

import pytest

from nat_finetune.errors import BackendError, JobGoesOn, OutOfReach, ServiceError
from nat_finetune.remote.polling import described, follow
from nat_finetune.types import JobState, TrainingJobStatus

RUNNING = TrainingJobStatus(JobState.RUNNING, None, backend_state="running")
READY = TrainingJobStatus(JobState.UNKNOWN, None, backend_state="ready")
DONE = TrainingJobStatus(JobState.COMPLETED, 1.0, backend_state="completed")
LOST = ServiceError("dropped", transient=True)


class Job:
    """Answers in turn, the last for ever; its clock is moved by waiting."""

    def __init__(self, *answers):
        self.answers, self.asked, self.now, self.waits, self.seen = answers, 0, 0.0, [], []

    async def read(self):
        answer = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def sleep(self, seconds):
        self.waits.append(seconds)
        self.now += seconds

    async def follow(self, *, timeout=1000.0, max_failures=3):
        return await follow(
            self.read, interval=10.0, timeout=timeout, max_failures=max_failures, on_status=self.seen.append,
            what="job j1", clock=lambda: self.now, sleep=self.sleep,
        )  # fmt: skip


async def test_to_the_end():
    job = Job(RUNNING, RUNNING, READY, READY, DONE)
    assert await job.follow() == DONE
    assert job.seen == [RUNNING, READY, DONE]


async def test_an_unknown_word_is_waited_out_until_the_timeout():
    job = Job(READY)
    with pytest.raises(JobGoesOn, match=r"job j1 has not ended in 100 s: it is ready \(a status that"):
        await job.follow(timeout=100.0)
    assert job.now <= 100.0
    assert job.asked == 11
    assert JobGoesOn.exit_code == 7


async def test_failures_in_a_row_end_it_and_single_ones_do_not():
    job = Job(LOST, LOST, RUNNING, LOST, LOST, DONE)
    assert await job.follow() == DONE
    assert job.waits == [15.0, 22.5, 10.0, 15.0, 22.5]
    with pytest.raises(OutOfReach, match="3 questions in a row had no answer; the last: dropped"):
        await Job(LOST).follow()


async def test_what_asking_again_would_not_mend_is_raised_at_once():
    job = Job(BackendError("no such job"))
    with pytest.raises(BackendError, match="no such job"):
        await job.follow()
    assert job.asked == 1


async def test_a_job_that_can_t_be_read_still_meets_the_timeout():
    job = Job(LOST)
    with pytest.raises(JobGoesOn, match="its state could not be read"):
        await job.follow(timeout=50.0, max_failures=10)


def test_a_status_in_words():
    status = TrainingJobStatus(JobState.RUNNING, 0.5, "step 3", "running", {"train_loss": 0.25})
    assert described(status) == "running, 50%, train_loss 0.25: step 3"
