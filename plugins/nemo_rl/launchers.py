"""How a job is started and followed: as a process here, or as a Ray job. Both are found again under the job's key."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from nat_finetune_plugins.nemo_rl.ray_jobs import RayJobs, Submission
from nat_finetune_plugins.nemo_rl.settings import NemoRLTrainerAdapterConfig, RayJobsConfig, RolloutsConfig, SubprocessConfig
from pydantic import SecretStr

from nat_finetune.errors import BackendError, ConfigError
from nat_finetune.remote import process
from nat_finetune.remote.http import Service
from nat_finetune.remote.secrets import checked_key, secret_from_env
from nat_finetune.types import JobState, TrainingJobRef, TrainingJobStatus

ROLLOUT_TOKEN = "NAT_FINETUNE_ROLLOUT_TOKEN"
"""Environment variable of the token of `nat-finetune serve-rollouts`."""
RAY_TOKEN = "RAY_AUTH_TOKEN"
"""Ray's own environment variable of its bearer token."""


@dataclass(frozen=True, slots=True)
class Start:
    """What is to be started."""

    key: str
    job_id: str
    folder: Path
    """Of this start, as this machine sees it."""
    command: Sequence[str]
    """To be run in the checkout."""


class Launcher(Protocol):
    """Starts jobs somewhere."""

    async def health(self) -> str:
        """What it is, for people; BackendError where it can't start anything."""

    async def find(self, start: Start) -> TrainingJobRef | None:
        """The job, if any process started it."""

    async def start(self, start: Start) -> TrainingJobRef:
        """Start it, unless it was started before."""

    async def status(self, ref: TrainingJobRef, folder: Path) -> TrainingJobStatus:
        """Where it stands."""

    async def log(self, ref: TrainingJobRef, folder: Path) -> str:
        """All that it wrote."""

    async def cancel(self, ref: TrainingJobRef, folder: Path) -> None:
        """End it."""

    async def close(self) -> None:
        """Let go of it; what runs goes on."""


class ProcessLauncher:
    """Implements `Launcher` on this machine."""

    def __init__(self, config: NemoRLTrainerAdapterConfig, launch: SubprocessConfig, name: str) -> None:
        self._config = config
        self._grace = launch.grace_seconds
        self._name = name
        self._logs: dict[Path, tuple[str, int]] = {}

    async def health(self) -> str:
        """The checkout is there."""
        lacks = self._config.lacks()
        if lacks is not None:
            raise BackendError(f"trainer_adapters.{self._name}.{lacks}")
        return "this machine"

    async def find(self, start: Start) -> TrainingJobRef | None:
        """By the claim that only one process can make."""
        return self._ref(start, await process.who_runs(start.folder)) if process.started(start.folder) else None

    async def start(self, start: Start) -> TrainingJobRef:
        """In a process group of its own."""
        who = await process.start(start.folder, start.command, cwd=Path(self._config.checkout), environment=os.environ)
        return self._ref(start, who)

    async def status(self, ref: TrainingJobRef, folder: Path) -> TrainingJobStatus:
        """By the exit code that its shell wrote, or by whether that still lives."""
        seen = await asyncio.to_thread(process.look, folder, _who(ref))
        if seen.running:
            return TrainingJobStatus(JobState.RUNNING, backend_state="running")
        if seen.exit_code == 0:
            return TrainingJobStatus(JobState.COMPLETED, 1.0, backend_state="exit code 0")
        if seen.cancelled:
            return TrainingJobStatus(JobState.CANCELLED, backend_state="cancelled")
        if seen.exit_code is None:
            message = "it ended without an exit code: it was killed, or the machine was restarted"
            return TrainingJobStatus(JobState.FAILED, message=message, backend_state="gone")
        return TrainingJobStatus(JobState.FAILED, backend_state=f"exit code {seen.exit_code}", message=_meaning(seen.exit_code))

    async def log(self, ref: TrainingJobRef, folder: Path) -> str:
        """Only what is new is read."""
        text, offset = self._logs.get(folder, ("", 0))
        gained, offset = await asyncio.to_thread(process.read_log_from, folder, offset)
        self._logs[folder] = (text + gained, offset)
        return text + gained

    async def cancel(self, ref: TrainingJobRef, folder: Path) -> None:
        """The whole group: SIGTERM, then SIGKILL."""
        await process.end(folder, _who(ref), grace=self._grace)

    async def close(self) -> None:
        """Nothing is held."""

    def _ref(self, start: Start, who: process.Who) -> TrainingJobRef:
        told = {"launch": "subprocess", "pid": who.pid, "group": who.group, "born": who.born}
        return TrainingJobRef(start.job_id, start.key, self._name, told)


def _who(ref: TrainingJobRef) -> process.Who:
    told = ref.metadata
    return process.Who(int(told["pid"]), int(told["group"]), str(told["born"]))


def _meaning(code: int) -> str:
    if code == 127:
        return "the command was not found; see `command`"
    return f"ended by signal {code - 128}" if code > 128 else ""


class RayLauncher:
    """Implements `Launcher` on a Ray cluster."""

    def __init__(self, config: NemoRLTrainerAdapterConfig, launch: RayJobsConfig, name: str) -> None:
        self._config = config
        self._launch = launch
        self._name = name
        token_of_rollouts = [ROLLOUT_TOKEN] if config.runs_rollouts() and ROLLOUT_TOKEN in os.environ else []
        self._environment = _environment([*config.env_vars, *token_of_rollouts])
        token = launch.token if launch.token is not None else secret_from_env(RAY_TOKEN)
        hidden = {key: value.get_secret_value() for key, value in launch.headers.items()}
        bearer = {} if token is None else {"Authorization": f"Bearer {checked_key(token.get_secret_value(), 'the token')}"}
        secrets: list[SecretStr | str | None] = [token, *hidden.values(), *self._environment.values()]
        self.jobs = RayJobs(Service("Ray", launch.url, headers={**hidden, **bearer}, secrets=secrets, verify=launch.verify_tls))

    async def health(self) -> str:
        """Ray answers."""
        return f"Ray {await self.jobs.version()} at {self._launch.url}"

    async def find(self, start: Start) -> TrainingJobRef | None:
        """By the submission id."""
        return None if await self.jobs.find(submission_id(start)) is None else self._ref(start)

    async def start(self, start: Start) -> TrainingJobRef:
        """Submit it under an id that Ray takes only once."""
        await self.jobs.submit(
            Submission(
                submission_id(start),
                f"cd {shlex.quote(self._config.checkout)} && exec {shlex.join(start.command)}",
                {"submitted_by": "nat-finetune", "nat_finetune_job": start.job_id, "nat_finetune_key": start.key},
                self._environment,
                self._launch.runtime_env,
                self._launch.num_cpus,
            )
        )
        return self._ref(start)

    async def status(self, ref: TrainingJobRef, folder: Path) -> TrainingJobStatus:
        """Ray's word."""
        return await self.jobs.status(ref.metadata["submission_id"])

    async def log(self, ref: TrainingJobRef, folder: Path) -> str:
        """The driver's."""
        return await self.jobs.logs(ref.metadata["submission_id"])

    async def cancel(self, ref: TrainingJobRef, folder: Path) -> None:
        """Ask Ray to stop it, and wait until it says so."""
        await self.jobs.stop(ref.metadata["submission_id"])
        for _ in range(60):
            if (await self.status(ref, folder)).state not in (JobState.PENDING, JobState.RUNNING):
                return
            await asyncio.sleep(0.5)
        raise BackendError(f"Ray was asked to stop {ref.job_id}, and has not done so in 30 s")

    async def close(self) -> None:
        """Drop the connections."""
        await self.jobs.close()

    def _ref(self, start: Start) -> TrainingJobRef:
        told = {"launch": "ray_jobs", "submission_id": submission_id(start), "host": self._launch.url}
        return TrainingJobRef(start.job_id, start.key, self._name, told)


def submission_id(start: Start) -> str:
    """The job's id on the cluster, the same in every process."""
    return f"nat-finetune-{start.key[:32]}"


def _environment(names: Sequence[str]) -> Mapping[str, str]:
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise ConfigError(f"env_vars names {', '.join(missing)}, which the environment does not have")
    return {name: os.environ[name] for name in names}


def make_launcher(config: NemoRLTrainerAdapterConfig, name: str) -> Launcher:
    """The one that the config names."""
    launch: Any = config.launch
    return ProcessLauncher(config, launch, name) if isinstance(launch, SubprocessConfig) else RayLauncher(config, launch, name)


async def check_rollouts(config: RolloutsConfig) -> None:
    """Whether rollouts can be had.

    Raises:
        BackendError: nobody answers there, or somebody else.
    """
    token = secret_from_env(ROLLOUT_TOKEN)
    headers = {} if token is None else {"Authorization": f"Bearer {token.get_secret_value()}"}
    service = Service("rollouts", config.url, headers=headers, secrets=[token], retries=1, timeout=15.0)
    try:
        answer = await service.get("health")
    except BackendError as error:
        raise BackendError(f"{error}; start `nat-finetune serve-rollouts` with this config at rollouts.url") from error
    finally:
        await service.close()
    if not isinstance(answer, dict) or answer.get("status") != "ok":
        raise BackendError(f"{config.url}/health does not answer as `nat-finetune serve-rollouts` does")
