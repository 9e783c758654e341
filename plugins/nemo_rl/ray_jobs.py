"""Ray's Jobs API over HTTP (Ray 2.x, `/api/jobs/`): submit, status, logs, stop, delete. No client of Ray's is needed.

The submission id is the idempotency key: a cluster takes each only once. Jobs die with their cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nat_finetune.errors import BackendError, ServiceError
from nat_finetune.remote.http import Service
from nat_finetune.types import JobState, TrainingJobStatus

STATES: Mapping[str, JobState] = {
    "PENDING": JobState.PENDING,
    "RUNNING": JobState.RUNNING,
    "STOPPED": JobState.CANCELLED,
    "SUCCEEDED": JobState.COMPLETED,
    "FAILED": JobState.FAILED,
}
"""All of Ray's words; another one is shown as it is."""


@dataclass(frozen=True, slots=True)
class Submission:
    """What is asked of Ray."""

    submission_id: str
    entrypoint: str
    """A shell line. It is stored and listed: nothing secret may stand in it."""
    metadata: Mapping[str, str]
    env_vars: Mapping[str, str]
    runtime_env: Mapping[str, Any]
    num_cpus: float | None = None

    def body(self) -> dict[str, Any]:
        """The request's JSON; what is not asked for is left out, as Ray's own client does it."""
        environment = dict(self.runtime_env) | ({"env_vars": dict(self.env_vars)} if self.env_vars else {})
        body: dict[str, Any] = {
            "entrypoint": self.entrypoint,
            "submission_id": self.submission_id,
            "runtime_env": environment,
            "metadata": dict(self.metadata),
        }
        return body if self.num_cpus is None else {**body, "entrypoint_num_cpus": self.num_cpus}


class RayJobs:
    """The jobs of one cluster."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def version(self) -> str:
        """Ray's own on the cluster.

        Raises:
            ServiceError: there is no answer.
            BackendError: it is none of Ray's.
        """
        answer = await self._service.get("api/version", retry=True)
        if not isinstance(answer, dict) or "ray_version" not in answer:
            raise BackendError(
                f"{self._service.name}: {self._service.base_url}/api/version does not answer as Ray's Jobs API does"
            )
        return str(answer["ray_version"])

    async def submit(self, submission: Submission) -> None:
        """Have it run, once: where the answer was lost, or Ray knows the id already, the job is looked for.

        Raises:
            ServiceError: it was refused.
        """
        if await self.find(submission.submission_id) is not None:
            return
        try:
            # Not retried blindly: whether the first attempt arrived is asked below.
            await self._service.post("api/jobs/", json=submission.body(), retry=False)
        except ServiceError:
            if await self.find(submission.submission_id) is None:
                raise

    async def find(self, submission_id: str) -> dict[str, Any] | None:
        """What Ray says of a job; None: it does not know it.

        Raises:
            ServiceError: there is no answer.
            BackendError: the answer is not Ray's: a proxy's 404 says nothing of the job.
        """
        answer = await self._service.request("GET", f"api/jobs/{submission_id}", retry=True, tolerate={404})
        if answer.status == 404:
            told = answer.data.decode(errors="replace") if isinstance(answer.data, bytes) else str(answer.data)
            if submission_id in told:
                return None
            raise BackendError(f"{self._service.name}: 404 from something that is not Ray: {self._service.redacted(told):.100}")
        if not isinstance(answer.data, dict):
            raise BackendError(f"{self._service.name}: job {submission_id}: expected a JSON object, found {answer.data!r:.100}")
        return answer.data

    async def status(self, submission_id: str) -> TrainingJobStatus:
        """Where it stands; a job that Ray no longer knows has died with its cluster."""
        job = await self.find(submission_id)
        if job is None:
            message = "Ray does not know this job any more: jobs end with the cluster that they were submitted to"
            return TrainingJobStatus(JobState.FAILED, message=message, backend_state="unknown to Ray")
        word = str(job.get("status"))
        detail = {key: job[key] for key in _TOLD if job.get(key) is not None}
        message = self._service.redacted(str(job.get("message") or ""))
        return TrainingJobStatus(STATES.get(word, JobState.UNKNOWN), message=message, backend_state=word, detail=detail)

    async def logs(self, submission_id: str) -> str:
        """All that the driver has written; "" before there is anything."""
        answer = await self._service.get(f"api/jobs/{submission_id}/logs", retry=True)
        return self._service.redacted(str(answer.get("logs") or "")) if isinstance(answer, dict) else ""

    async def stop(self, submission_id: str) -> bool:
        """Ask it to end; whether it was running."""
        answer = await self._service.post(f"api/jobs/{submission_id}/stop", retry=True, tolerate={404})
        return isinstance(answer, dict) and bool(answer.get("stopped"))

    async def delete(self, submission_id: str) -> bool:
        """Have Ray forget a job that has ended; one that runs is refused with 500, so it is asked once."""
        answer = await self._service.delete(f"api/jobs/{submission_id}", retry=False, tolerate={404})
        return isinstance(answer, dict) and bool(answer.get("deleted"))

    async def close(self) -> None:
        """Drop the connections."""
        await self._service.close()


_TOLD = ("submission_id", "job_id", "start_time", "end_time", "driver_exit_code", "driver_node_id", "error_type")
