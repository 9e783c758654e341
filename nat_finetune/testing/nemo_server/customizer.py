"""Entity store and customizer: namespaces, datasets, configs and jobs that go through their script."""

from __future__ import annotations

import json
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from nat_finetune.testing.nemo_server import bodies
from nat_finetune.testing.nemo_server.asked import NOW, body_of, free, guarded, paged, there
from nat_finetune.testing.nemo_server.datastore import files_of
from nat_finetune.testing.nemo_server.script import NemoScript
from nat_finetune.testing.nemo_server.state import Entry, State

ENDED = ("completed", "failed", "cancelled")
EPOCH_STEPS = 10


class Customizer:
    """Their routes."""

    def __init__(self, state: State, script: NemoScript) -> None:
        self._state = state
        self._script = script

    def routes(self) -> list[Route]:
        """All of them."""
        job = "/v1/customization/jobs/{job}"
        handlers = [
            ("POST", "/v1/namespaces", self.make_namespace),
            ("POST", "/v1/datasets", self.make_dataset),
            ("GET", "/v1/datasets/{namespace}/{name}", self.dataset),
            ("GET", "/v1/customization/configs", self.configs),
            ("POST", "/v1/customization/jobs", self.make_job),
            ("GET", "/v1/customization/jobs", self.jobs),
            ("GET", job, self.job),
            ("GET", f"{job}/status", self.status),
            ("POST", f"{job}/cancel", self.cancel),
            ("GET", f"{job}/container-logs", self.logs),
        ]
        return [Route(path, guarded(call, self._script.token), methods=[method]) for method, path, call in handlers]

    async def make_namespace(self, request: Request) -> Response:
        """Once."""
        body = await body_of(request, bodies.Namespace)
        free(self._state["namespaces"], body.id, "namespace")
        return JSONResponse(self._state.put("namespaces", body.id, _kept(body)))

    async def make_dataset(self, request: Request) -> Response:
        """In a namespace that exists, once."""
        body = await body_of(request, bodies.Dataset)
        there(self._state["namespaces"].get(body.namespace), f"namespace {body.namespace}")
        name = f"{body.namespace}/{body.name}"
        free(self._state["datasets"], name, "dataset")
        return JSONResponse(self._state.put("datasets", name, {"id": f"dataset-{self._state.number()}", **_kept(body)}))

    async def dataset(self, request: Request) -> Response:
        """One."""
        name = f"{request.path_params['namespace']}/{request.path_params['name']}"
        return JSONResponse(there(self._state["datasets"].get(name), f"dataset {name}"))

    async def configs(self, request: Request) -> Response:
        """What can be trained, and in which ways."""
        return paged(request, [_config(name, ways) for name, ways in self._script.configs.items()], self._script.page_size)

    async def make_job(self, request: Request) -> Response:
        """A job of a known config on a registered dataset; its name only once in its namespace."""
        body = await body_of(request, bodies.Job)
        ways = self._script.configs.get(body.config)
        if ways is None:
            raise HTTPException(404, detail=f"customization config {body.config} not found")
        if (body.hyperparameters.training_type, body.hyperparameters.finetuning_type) not in ways:
            raise HTTPException(422, detail=f"{body.config} does not train in this way")
        name = f"{body.dataset.namespace}/{body.dataset.name}"
        dataset = there(self._state["datasets"].get(name), f"dataset {name}")
        namespace = body.namespace or "default"
        taken = {(job["namespace"], job["name"]) for job in self._state["jobs"].values()}
        if body.name is not None and (namespace, body.name) in taken:
            raise HTTPException(409, detail=f"job {namespace}/{body.name} already exists")
        job_id = f"cust-{len(self._state['jobs']):04d}"
        base = body.config.partition("/")[2].partition("@")[0]
        entry = {
            **_kept(body),
            "id": job_id,
            "namespace": namespace,
            "name": body.name or job_id,
            "output_model": body.output_model or f"{namespace}/{base}@{job_id}",
            "problem": self._problem(dataset["files_url"].removeprefix("hf://datasets/"), body.hyperparameters.training_type),
            "asked": 0,
            "cancelled": None,
        }
        return JSONResponse(self._shown(self._state.put("jobs", job_id, entry)))

    async def jobs(self, request: Request) -> Response:
        """A namespace's."""
        namespace = request.query_params.get("filter[namespace]")
        found = [self._shown(job) for job in self._state["jobs"].values() if namespace in (None, job["namespace"])]
        return paged(request, found, self._script.page_size)

    async def job(self, request: Request) -> Response:
        """One."""
        return JSONResponse(self._shown(self._find(request)))

    async def status(self, request: Request) -> Response:
        """Where it stands; asking takes it on."""
        job = self._find(request)
        told = self._status(job)
        job["asked"] += 1
        self._state.save()
        return JSONResponse(told)

    async def cancel(self, request: Request) -> Response:
        """Unless it has ended."""
        job = self._find(request)
        if self._word(job) in ENDED:
            raise HTTPException(409, detail=f"job {job['id']} is {self._word(job)}")
        if job["cancelled"] is None:
            job["cancelled"] = job["asked"]
            self._state.save()
        return JSONResponse(self._shown(job))

    async def logs(self, request: Request) -> Response:
        """What its container wrote."""
        job = self._find(request)
        lines = f"training {job['output_model']}\n{self._word(job)}\n"
        return JSONResponse({"entries": {"training": {"logs": {"main": lines}, "object": "pod/training"}}})

    def _find(self, request: Request) -> Entry:
        name = request.path_params["job"]
        return there(self._state["jobs"].get(name), f"job {name}")

    def _word(self, job: Entry) -> str:
        if job["cancelled"] is not None:
            return "cancelling" if job["asked"] <= job["cancelled"] else "cancelled"
        statuses = self._script.statuses
        word = statuses[min(job["asked"], len(statuses) - 1)]
        return "failed" if job["problem"] is not None and word == "completed" else word

    def _status(self, job: Entry) -> Entry:
        """With progress and losses from the first `running` on; the best epoch at the end."""
        word, given = self._word(job), job["hyperparameters"]
        told: Entry = {"created_at": NOW, "updated_at": NOW, "status": word, "status_logs": self._notes(job, word)}
        total = given.get("epochs") or 1
        ran = self._script.statuses[: job["asked"] + 1].count("running")
        epochs = total if word == "completed" else max(0, min(total - 1, ran - 1))
        if word in ("running", "completed"):
            curve = [_point(n, 0.7 * 0.8**n) for n in range(epochs + 1)]
            held = [_point(n, 0.05 + 0.7 * 0.8**n) for n in range(epochs + 1)]
            told |= {
                "percentage_done": None if self._script.null_progress else 100.0 * epochs / total,
                "epochs_completed": epochs,
                "steps_completed": EPOCH_STEPS * epochs,
                "steps_per_epoch": EPOCH_STEPS,
                "metrics": {"keys": ["train_loss", "val_loss"], "metrics": {"train_loss": curve, "val_loss": held}},
            }
        if word == "completed":
            last = told["metrics"]["metrics"]
            told |= {"best_epoch": total, "elapsed_time": 60.0 * total}
            told |= {name: last[name][-1]["value"] for name in ("train_loss", "val_loss")}
        return told

    def _notes(self, job: Entry, word: str) -> list[Entry]:
        notes: list[Entry] = [{"updated_at": NOW, "message": "created"}]
        if word not in ("created", "pending"):
            notes.append({"updated_at": NOW.replace(":05.", ":06."), "message": "EntityHandler_1_Completed"})
        if word == "failed":
            detail = job["problem"] or self._script.reason
            notes.append({"updated_at": NOW.replace(":05.", ":07."), "message": "TrainingJobFailed", "detail": detail})
        return notes

    def _shown(self, job: Entry) -> Entry:
        """As the service gives it: the name is not part of it."""
        hidden = ("asked", "cancelled", "problem", "name")
        return {**{key: value for key, value in job.items() if key not in hidden}, "status": self._word(job)}

    def _problem(self, repo: str, training_type: str) -> str | None:
        """Why the data can't be trained on."""
        files = {path: text for path, text in files_of(self._state, repo).items() if path.startswith("training/")}
        if not files:
            return f"{repo} has no file below training/"
        for path, text in files.items():
            for number, line in enumerate(text.splitlines(), start=1):
                try:
                    problem = bodies.row_problem(json.loads(line), training_type)
                except ValueError as error:
                    problem = f"no JSON: {error}"
                if problem is not None:
                    return f"{path}:{number}: {problem}"
        return None


def _point(epoch: int, loss: float) -> Entry:
    return {"step": EPOCH_STEPS * epoch, "timestamp": NOW, "value": round(loss, 4)}


def _config(name: str, ways: Any) -> Entry:
    namespace, _, plain = name.partition("/")
    options = [
        {"training_type": training, "finetuning_type": tuning, "micro_batch_size": 1, "num_gpus": 1}
        for training, tuning in ways
    ]
    return {"name": plain, "namespace": namespace, "max_seq_length": 4096, "training_options": options}


def _kept(body: bodies.Body) -> Entry:
    return {"created_at": NOW, "updated_at": NOW, **body.model_dump(exclude_none=True)}
