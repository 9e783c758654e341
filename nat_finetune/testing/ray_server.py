"""Ray's Jobs API without Ray, to rehearse against: jobs are shell lines that run here, in a folder that outlives the server.

It takes what Ray 2.x takes, refuses what Ray refuses, and answers in Ray's words. It needs the extra `test-servers`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nat_finetune.errors import BackendError
from nat_finetune.remote import process

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

_FIELDS: Mapping[str, tuple[type, ...]] = {
    "entrypoint": (str,),
    "submission_id": (str,),
    "job_id": (str,),
    "runtime_env": (dict,),
    "metadata": (dict,),
    "entrypoint_num_cpus": (int, float),
    "entrypoint_num_gpus": (int, float),
    "entrypoint_memory": (int,),
    "entrypoint_resources": (dict,),
    "entrypoint_label_selector": (dict,),
}
"""Of a submission."""


class RayServer:
    """The jobs below a folder."""

    def __init__(self, folder: Path, *, token: str | None = None) -> None:
        self._folder = folder
        self._token = token
        folder.mkdir(parents=True, exist_ok=True)

    def app(self) -> Starlette:
        """The ASGI application, for `testing.serving.serving`."""
        from starlette.applications import Starlette
        from starlette.routing import Route

        return Starlette(
            routes=[
                Route("/api/version", self._version),
                Route("/api/jobs/", self._submit, methods=["POST"]),
                Route("/api/jobs/", self._list),
                Route("/api/jobs/{job}", self._job),
                Route("/api/jobs/{job}", self._delete, methods=["DELETE"]),
                Route("/api/jobs/{job}/logs", self._logs),
                Route("/api/jobs/{job}/stop", self._stop, methods=["POST"]),
            ]
        )

    def set_status(self, submission_id: str, status: str | None) -> None:
        """From now on answer with this status, whatever the job does; None: the truth again."""
        self._write(submission_id, {**self._read(submission_id), "shown": status})

    async def _version(self, request: Request) -> Response:
        if refused := self._refused(request):
            return refused
        return _json({"version": "4", "ray_version": "2.60.0", "ray_commit": "none", "session_name": "rehearsal"})

    async def _submit(self, request: Request) -> Response:
        if refused := self._refused(request):
            return refused
        asked = await request.json()
        wrong = [name for name, value in asked.items() if name not in _FIELDS or not isinstance(value, _FIELDS[name])]
        if wrong or "entrypoint" not in asked:
            return _text(f"TypeError: {', '.join(wrong) or 'entrypoint is missing'}", 400)
        if not all(isinstance(value, str) for value in asked.get("metadata", {}).values()):
            return _text("TypeError: metadata values must be strings", 400)
        name = asked.get("submission_id") or f"raysubmit_{time.time_ns():x}"
        if (self._folder / name).exists():
            return _text(
                f"ValueError: Job with submission_id {name} already exists. Please use a different submission_id.", 400
            )
        self._write(name, {**asked, "submission_id": name, "start_time": _now()})
        variables = {**os.environ, **asked.get("runtime_env", {}).get("env_vars", {})}
        await process.start(
            self._folder / name, ["/bin/sh", "-c", asked["entrypoint"]], cwd=self._folder, environment=variables
        )
        return _json({"job_id": name, "submission_id": name})

    async def _list(self, request: Request) -> Response:
        return self._refused(request) or _json([self._details(place.name) for place in sorted(self._folder.iterdir())])

    async def _job(self, request: Request) -> Response:
        name = request.path_params["job"]
        return self._refused(request) or self._missing(name) or _json(self._details(name))

    async def _logs(self, request: Request) -> Response:
        name = request.path_params["job"]
        return self._refused(request) or self._missing(name) or _json({"logs": self._log(name)})

    async def _stop(self, request: Request) -> Response:
        name = request.path_params["job"]
        if refused := self._refused(request) or self._missing(name):
            return refused
        who = process.read_who(self._folder / name)
        running = process.look(self._folder / name, who).running
        await process.end(self._folder / name, who, grace=3.0)
        return _json({"stopped": running})

    async def _delete(self, request: Request) -> Response:
        name = request.path_params["job"]
        if refused := self._refused(request) or self._missing(name):
            return refused
        if self._details(name)["status"] in ("PENDING", "RUNNING"):
            return _text(f"RuntimeError: Attempted to delete job '{name}', but it is in a non-terminal state", 500)
        (self._folder / name).rename(self._folder.with_name(f"{self._folder.name}-deleted-{name}-{time.time_ns()}"))
        return _json({"deleted": True})

    def _details(self, name: str) -> dict[str, Any]:
        known = self._read(name)
        status, message, code = self._state(name)
        asked = {key: known.get(key) for key in ("entrypoint", "runtime_env", "metadata", "submission_id", "start_time")}
        ended = None if code is None and status == "RUNNING" else _now()
        told = {"status": known.get("shown") or status, "message": message, "driver_exit_code": code, "end_time": ended}
        return {"type": "SUBMISSION", "job_id": None, "error_type": None, "driver_node_id": "node", **asked, **told}

    def _state(self, name: str) -> tuple[str, str, int | None]:
        try:
            seen = process.look(self._folder / name, process.read_who(self._folder / name))
        except BackendError:
            return "PENDING", "Job has not started yet.", None
        if seen.running:
            return "RUNNING", "Job is currently running.", None
        if seen.cancelled:
            return "STOPPED", "Job was intentionally stopped.", None
        if seen.exit_code == 0:
            return "SUCCEEDED", "Job finished successfully.", 0
        said = f"Job entrypoint command failed with exit code {seen.exit_code}, last available logs"
        return "FAILED", f"{said} (truncated to 20,000 chars):\n{self._log(name)[-20_000:]}", seen.exit_code

    def _log(self, name: str) -> str:
        return process.read_log_from(self._folder / name, 0)[0]

    def _refused(self, request: Request) -> Response | None:
        right = self._token is None or request.headers.get("authorization") == f"Bearer {self._token}"
        return None if right else _text("Unauthorized: Missing or invalid authentication token", 401)

    def _missing(self, name: str) -> Response | None:
        return None if (self._folder / name / "job.json").is_file() else _text(f"Job {name} does not exist", 404)

    def _read(self, name: str) -> dict[str, Any]:
        known: dict[str, Any] = json.loads((self._folder / name / "job.json").read_text(encoding="utf-8"))
        return known

    def _write(self, name: str, job: Mapping[str, Any]) -> None:
        (self._folder / name).mkdir(exist_ok=True)
        (self._folder / name / "job.json").write_text(json.dumps(job), encoding="utf-8")


def _now() -> int:
    return int(time.time() * 1000)


def _json(value: Any) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse(value)


def _text(text: str, status: int) -> Response:
    from starlette.responses import PlainTextResponse

    return PlainTextResponse(text, status)
