"""The data store: Hugging Face's API of dataset repositories, with regular and large files."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from typing import Any
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from nat_finetune.testing.nemo_server import bodies
from nat_finetune.testing.nemo_server.asked import body_of, free, guarded, there
from nat_finetune.testing.nemo_server.bodies import checked
from nat_finetune.testing.nemo_server.script import NemoScript
from nat_finetune.testing.nemo_server.state import State

LFS = "application/vnd.git-lfs+json"
HF = "/v1/hf"


class DataStore:
    """Its routes."""

    def __init__(self, state: State, script: NemoScript) -> None:
        self._state = state
        self._script = script

    def routes(self) -> list[Route]:
        """All of them."""
        repo = f"{HF}/api/datasets/{{namespace}}/{{name}}"
        handlers = [
            ("POST", "/v1/datastore/namespaces", self.make_namespace),
            ("GET", "/v1/datastore/namespaces/{namespace}", self.namespace),
            ("POST", f"{HF}/api/repos/create", self.make_repository),
            ("GET", f"{repo}/revision/{{branch}}", self.revision),
            ("POST", f"{repo}/preupload/{{branch}}", self.preupload),
            ("POST", f"{repo}/commit/{{branch}}", self.commit),
            ("POST", f"{HF}/datasets/{{namespace}}/{{name}}.git/info/lfs/objects/batch", self.large_batch),
            ("POST", f"{HF}/lfs/verify", self.verify_large),
        ]
        return [
            *(Route(path, guarded(call, self._script.hf_token), methods=[method]) for method, path, call in handlers),
            Route(f"{HF}/lfs/{{oid}}", self.put_large, methods=["PUT"]),
        ]

    async def make_namespace(self, request: Request) -> Response:
        """A form, not JSON."""
        kind = request.headers.get("content-type", "").partition(";")[0]
        if kind != "application/x-www-form-urlencoded":
            raise HTTPException(415, detail=f"expected a form, found {kind}")
        form = parse_qs((await request.body()).decode())
        if form.keys() != {"namespace"} or len(form["namespace"]) != 1:
            raise HTTPException(422, detail="namespace: field required, and no other")
        name = form["namespace"][0]
        free(self._state["store_namespaces"], name, "namespace")
        self._state.put("store_namespaces", name, {"namespace": name})
        return JSONResponse({"namespace": name}, 201)

    async def namespace(self, request: Request) -> Response:
        """Whether it is there."""
        name = request.path_params["namespace"]
        return JSONResponse(there(self._state["store_namespaces"].get(name), f"namespace {name}"))

    async def make_repository(self, request: Request) -> Response:
        """In a namespace that exists."""
        body = await body_of(request, bodies.Repository)
        there(self._state["store_namespaces"].get(body.organization), f"namespace {body.organization}")
        name = f"{body.organization}/{body.name}"
        free(self._state["repositories"], name, "repository")
        self._state.put("repositories", name, {"commits": []})
        return JSONResponse({"url": f"{_base(request)}{HF}/{body.type}s/{name}"})

    async def revision(self, request: Request) -> Response:
        """The newest commit."""
        name, commits = self._commits(request)
        if not commits:
            raise HTTPException(404, detail=f"{name} has no commit")
        return JSONResponse({"id": name, "sha": commits[-1]["oid"], "siblings": [{"rfilename": p} for p in _tree(commits)]})

    async def preupload(self, request: Request) -> Response:
        """How each file is to come."""
        _, commits = self._commits(request)
        body = await body_of(request, bodies.Preupload)
        tree = _tree(commits)
        files = []
        for file in body.files:
            try:
                sample = base64.b64decode(file.sample, validate=True)
            except binascii.Error:
                raise HTTPException(422, detail=f"the sample of {file.path} is no base64") from None
            if len(sample) != min(512, file.size):
                raise HTTPException(422, detail=f"the sample of {file.path} has {len(sample)} bytes")
            mode = "lfs" if file.size >= self._script.large_from else "regular"
            known = tree.get(file.path)
            oid = {} if known is None else {"oid": known["sha256"] if mode == "lfs" else known["git"]}
            files.append({"path": file.path, "uploadMode": mode, "shouldIgnore": False, **oid})
        return JSONResponse({"files": files})

    async def commit(self, request: Request) -> Response:
        """Lines of JSON: a header, then files."""
        name, commits = self._commits(request)
        if request.headers.get("content-type") != "application/x-ndjson":
            raise HTTPException(415, detail="expected application/x-ndjson")
        text = await request.body()
        try:
            lines = [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError as error:
            raise HTTPException(400, detail=f"no lines of JSON: {error}") from None
        if not lines or any(not isinstance(line, dict) or line.keys() != {"key", "value"} for line in lines):
            raise HTTPException(400, detail="every line is an object of key and value")
        if lines[0]["key"] != "header":
            raise HTTPException(400, detail="the first line is the header")
        checked(bodies.CommitHeader, lines[0]["value"])
        files = dict(self._committed(line["key"], line["value"]) for line in lines[1:])
        oid = hashlib.sha1(text + str(len(commits)).encode(), usedforsecurity=False).hexdigest()
        commits.append({"oid": oid, "files": files})
        self._state.save()
        url = f"{_base(request)}{HF}/datasets/{name}/commit/{oid}"
        return JSONResponse({"commitUrl": url, "commitOid": oid, "pullRequestUrl": None})

    def _committed(self, key: str, value: Any) -> tuple[str, dict[str, Any]]:
        if key == "file":
            file = checked(bodies.CommitFile, value)
            try:
                content = base64.b64decode(file.content, validate=True)
            except binascii.Error:
                raise HTTPException(400, detail=f"{file.path} is no base64") from None
            if len(content) >= self._script.large_from:
                raise HTTPException(400, detail=f"{file.path} must be uploaded as a large file")
            return file.path, _known(content, self._state.add_object(content))
        if key != "lfsFile":
            raise HTTPException(400, detail=f"a line of {key!r} is not known")
        large = checked(bodies.CommitLarge, value)
        stored = self._state.object(large.oid)
        if stored is None or len(stored) != large.size:
            raise HTTPException(400, detail=f"{large.path} is committed and was not uploaded")
        return large.path, _known(stored, large.oid)

    async def large_batch(self, request: Request) -> Response:
        """Where large files go; those that are there go nowhere."""
        self._commits(request)
        if request.headers.get("accept") != LFS:
            raise HTTPException(406, detail=f"expected Accept: {LFS}")
        body = await body_of(request, bodies.LargeBatch, LFS)
        objects = []
        for item in body.objects:
            one: dict[str, Any] = {"oid": item.oid, "size": item.size, "authenticated": True}
            if self._state.object(item.oid) is None:
                at = f"{_base(request)}{HF}/lfs"
                upload = {"href": f"{at}/{item.oid}?signature={_signature(item.oid)}", "header": {}}
                one["actions"] = {"upload": upload, "verify": {"href": f"{at}/verify"}}
            objects.append(one)
        return JSONResponse({"transfer": "basic", "objects": objects}, media_type=LFS)

    async def put_large(self, request: Request) -> Response:
        """Its bytes, at the address that the batch gave: the signature is all that it takes, as in object stores."""
        content, oid = await request.body(), request.path_params["oid"]
        if request.query_params.get("signature") != _signature(oid):
            raise HTTPException(403, detail="the signature is not right")
        if "authorization" in request.headers:
            raise HTTPException(400, detail="a signature and an Authorization header: only one way is allowed")
        if hashlib.sha256(content).hexdigest() != oid:
            raise HTTPException(400, detail="the content has another digest")
        self._state.add_object(content)
        return Response()

    async def verify_large(self, request: Request) -> Response:
        """Whether they arrived."""
        body = await body_of(request, bodies.LargeObject)
        stored = self._state.object(body.oid)
        if stored is None or len(stored) != body.size:
            raise HTTPException(404, detail="no such object")
        return JSONResponse({})

    def _commits(self, request: Request) -> tuple[str, list[dict[str, Any]]]:
        name = f"{request.path_params['namespace']}/{request.path_params['name']}"
        branch = request.path_params.get("branch", "main")
        entry = there(self._state["repositories"].get(name), f"repository {name}")
        if branch != "main":
            raise HTTPException(404, detail=f"{name} has no branch {branch}")
        return name, entry["commits"]


def files_of(state: State, repo: str) -> dict[str, bytes]:
    """The newest content of a repository, by path."""
    entry = state["repositories"].get(repo)
    tree = _tree(entry["commits"]) if entry is not None else {}
    return {path: state.object(known["sha256"]) or b"" for path, known in tree.items()}


def _tree(commits: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    tree: dict[str, dict[str, str]] = {}
    for commit in commits:
        tree |= commit["files"]
    return tree


def _known(content: bytes, digest: str) -> dict[str, str]:
    git = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
    return {"sha256": digest, "git": git}


def _signature(oid: str) -> str:
    return hashlib.sha256(f"put {oid}".encode()).hexdigest()[:16]


def _base(request: Request) -> str:
    return str(request.base_url).rstrip("/")
