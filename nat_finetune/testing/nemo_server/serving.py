"""Deployment service and the models that it serves: each deployment has an address of its own, and so has the base model."""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from nat_finetune.testing.nemo_server import bodies
from nat_finetune.testing.nemo_server.asked import NOW, body_of, free, guarded, paged, there
from nat_finetune.testing.nemo_server.script import BASE_MODEL, NemoScript
from nat_finetune.testing.nemo_server.state import Entry, State


class Serving:
    """Their routes."""

    def __init__(self, state: State, script: NemoScript) -> None:
        self._state = state
        self._script = script
        self._repeated: Counter[str] = Counter()

    def routes(self) -> list[Route]:
        """All of them; models are asked without a token."""
        deployments = "/v1/deployment/model-deployments"
        handlers = [
            ("POST", "/v1/deployment/configs", self.make_config),
            ("GET", "/v1/deployment/configs/{namespace}/{name}", self.config),
            ("POST", deployments, self.deploy),
            ("GET", deployments, self.deployments),
            ("GET", f"{deployments}/{{namespace}}/{{name}}", self.deployment),
        ]
        models = [("GET", "/v1/models", self.models), ("POST", "/v1/chat/completions", self.chat)]
        return [
            *(Route(path, guarded(call, self._script.token), methods=[method]) for method, path, call in handlers),
            *(Route(f"/nim/base{path}", call, methods=[method]) for method, path, call in models),
            *(Route(f"/nim/{{namespace}}/{{name}}{path}", call, methods=[method]) for method, path, call in models),
        ]

    async def make_config(self, request: Request) -> Response:
        """Of a model that a job has made."""
        body = await body_of(request, bodies.DeploymentConfig)
        name = f"{body.namespace}/{body.name}"
        free(self._state["deployment_configs"], name, "deployment config")
        made = {job["output_model"] for job in self._state["jobs"].values()}
        if body.model not in made:
            raise HTTPException(404, detail=f"model {body.model} not found")
        entry = {"created_at": NOW, **body.model_dump(exclude_none=True)}
        return JSONResponse(self._state.put("deployment_configs", name, entry))

    async def config(self, request: Request) -> Response:
        """One."""
        name = f"{request.path_params['namespace']}/{request.path_params['name']}"
        return JSONResponse(there(self._state["deployment_configs"].get(name), f"deployment config {name}"))

    async def deploy(self, request: Request) -> Response:
        """Of a config that exists, once."""
        body = await body_of(request, bodies.Deployment)
        name = f"{body.namespace}/{body.name}"
        free(self._state["deployments"], name, "deployment")
        there(self._state["deployment_configs"].get(body.config), f"deployment config {body.config}")
        entry = {"created_at": NOW, "asked": 0, **body.model_dump(exclude_none=True)}
        return JSONResponse(self._shown(self._state.put("deployments", name, entry), request))

    async def deployments(self, request: Request) -> Response:
        """All, in pages."""
        found = [self._shown(entry, request) for entry in self._state["deployments"].values()]
        return paged(request, found, self._script.page_size)

    async def deployment(self, request: Request) -> Response:
        """One; asking takes it on."""
        entry = self._find(request)
        shown = self._shown(entry, request)
        entry["asked"] += 1
        self._state.save()
        return JSONResponse(shown)

    async def models(self, request: Request) -> Response:
        """What is served at this address."""
        return JSONResponse({"object": "list", "data": [{"id": self._served(request), "object": "model"}]})

    async def chat(self, request: Request) -> Response:
        """A completion; the same request, asked again, has another one."""
        body: dict[str, Any] = json.loads(await request.body())
        served = self._served(request)
        if body.get("model") != served:
            raise HTTPException(404, detail=f"model {body.get('model')} is not served here, {served} is")
        asked = json.dumps(body, sort_keys=True)
        draw = Random(f"{asked} {self._repeated[asked]}")
        self._repeated[asked] += 1
        text = self._script.answer(body["messages"], served != BASE_MODEL, draw)
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return JSONResponse({"id": "chat", "object": "chat.completion", "created": 0, "model": served, "choices": [choice]})

    def _find(self, request: Request) -> Entry:
        name = f"{request.path_params['namespace']}/{request.path_params['name']}"
        return there(self._state["deployments"].get(name), f"deployment {name}")

    def _served(self, request: Request) -> str:
        if "name" not in request.path_params:
            return BASE_MODEL
        entry = self._find(request)
        if self._word(entry) != "ready":
            raise HTTPException(503, detail="the deployment is not ready")
        return str(self._state["deployment_configs"][entry["config"]]["model"])

    def _word(self, entry: Entry) -> str:
        statuses = self._script.deployment_statuses
        return statuses[min(int(entry["asked"]), len(statuses) - 1)]

    def _shown(self, entry: Entry, request: Request) -> Entry:
        word = self._word(entry)
        url = f"{str(request.base_url).rstrip('/')}/nim/{entry['namespace']}/{entry['name']}"
        status = {"status": word, "description": self._script.reason if word == "failed" else f"it is {word}"}
        return {
            **{key: value for key, value in entry.items() if key != "asked"},
            "url": url,
            "deployed": word == "ready",
            "models": [self._state["deployment_configs"][entry["config"]]["model"]],
            "status_details": status,
        }
