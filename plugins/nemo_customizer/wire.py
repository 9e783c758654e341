"""What is said to NeMo microservices: paths and request bodies; `answers` has what comes back.

The two modules that know the wire (entity store, data store, customizer and deployment service of nemo-microservices 1.5). The
platform that follows it has other addresses and other words: a change of the service is a change of these two files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Body = dict[str, Any]
BRANCH = "main"
KEY_FIELD, RUN_FIELD, REVISION_FIELD = "nat_finetune_key", "nat_finetune_run", "revision"
"""Custom fields of a job and of a dataset: which update they are of, of which run, and the commit of the files."""

# --------------------------------------------------------------------------------------------------------------------- paths

NAMESPACES = "/v1/namespaces"
DATASETS = "/v1/datasets"
CONFIGS = "/v1/customization/configs"
JOBS = "/v1/customization/jobs"
DEPLOYMENT_CONFIGS = "/v1/deployment/configs"
DEPLOYMENTS = "/v1/deployment/model-deployments"
STORE_NAMESPACES = "/v1/datastore/namespaces"
REPOSITORIES = "/v1/hf/api/repos/create"


def dataset(namespace: str, name: str) -> str:
    """A registered dataset."""
    return f"{DATASETS}/{namespace}/{name}"


def job(job_id: str, what: str = "") -> str:
    """A job, or its `status`, `cancel`, `container-logs`."""
    return f"{JOBS}/{job_id}/{what}".rstrip("/")


def deployment_config(namespace: str, name: str) -> str:
    """A deployment config."""
    return f"{DEPLOYMENT_CONFIGS}/{namespace}/{name}"


def deployment(namespace: str, name: str) -> str:
    """A deployment's own address: the list has pages, and one can be on any of them."""
    return f"{DEPLOYMENTS}/{namespace}/{name}"


def repository(repo: str, what: str) -> str:
    """`preupload`, `commit` or `revision` of a dataset repository's branch."""
    return f"/v1/hf/api/datasets/{repo}/{what}/{BRANCH}"


def lfs_batch(repo: str) -> str:
    """Where large files are announced."""
    return f"/v1/hf/datasets/{repo}.git/info/lfs/objects/batch"


PAGE_SIZE = 100


def page(number: int, **filters: str) -> dict[str, str | int]:
    """The query of a list, newest first."""
    named: dict[str, str | int] = {f"filter[{key}]": value for key, value in filters.items()}
    return {"page": number, "page_size": PAGE_SIZE, "sort": "-created_at", **named}


# -------------------------------------------------------------------------------------------------------------------- bodies

JSON = "application/json"
LFS_JSON = {"Accept": "application/vnd.git-lfs+json", "Content-Type": "application/vnd.git-lfs+json"}
NDJSON = {"Content-Type": "application/x-ndjson"}


def namespace_body(name: str) -> Body:
    """A namespace of the entity store."""
    return {"id": name, "description": f"nat-finetune namespace: {name}"}


def repository_body(repo: str) -> Body:
    """A dataset repository of the data store."""
    organization, name = repo.split("/")
    return {"name": name, "organization": organization, "type": "dataset"}


def files_url(repo: str) -> str:
    """A dataset repository as the customizer reads it."""
    return f"hf://datasets/{repo}"


def dataset_body(repo: str, description: str, fields: Mapping[str, str]) -> Body:
    """A dataset of the entity store."""
    namespace, name = repo.split("/")
    return {
        "name": name,
        "namespace": namespace,
        "files_url": files_url(repo),
        "description": description,
        "custom_fields": dict(fields),
    }


def preupload_body(files: Sequence[tuple[str, str, int]]) -> Body:
    """Path, the first 512 bytes in base64, and size of each file: what the server decides the way of upload by."""
    return {"files": [{"path": path, "sample": sample, "size": size} for path, sample, size in files]}


def lfs_body(objects: Sequence[tuple[str, int]]) -> Body:
    """Digest and size of each large file."""
    return {
        "operation": "upload",
        "transfers": ["basic"],
        "objects": [{"oid": digest, "size": size} for digest, size in objects],
        "hash_algo": "sha256",
        "ref": {"name": BRANCH},
    }


def commit_header(summary: str) -> bytes:
    """The first line of a commit."""
    return _line("header", {"summary": summary, "description": ""})


def commit_large(path: str, digest: str, size: int) -> bytes:
    """The line of a file that was uploaded as a large one."""
    return _line("lfsFile", {"path": path, "algo": "sha256", "oid": digest, "size": size})


def commit_regular(path: str) -> tuple[bytes, bytes]:
    """What stands before and after the base64 of a file that is part of the commit."""
    before, after = _line("file", {"content": "\0", "path": path, "encoding": "base64"}).split(b"\\u0000")
    return before, after


def _line(key: str, value: Body) -> bytes:
    return json.dumps({"key": key, "value": value}).encode() + b"\n"


def job_body(
    config: str, repo: str, hyperparameters: Body, *, name: str, output_model: str | None, fields: Mapping[str, str]
) -> Body:
    """A customization job; its name makes that it can't be made twice."""
    namespace, dataset_name = repo.split("/")
    body = {
        "name": name,
        "namespace": namespace,
        "config": config,
        "dataset": {"name": dataset_name, "namespace": namespace},
        "hyperparameters": hyperparameters,
        "custom_fields": dict(fields),
    }
    return body if output_model is None else {**body, "output_model": output_model}


def deployment_config_body(namespace: str, name: str, *, model: str, description: str, nim: Mapping[str, str | int]) -> Body:
    """How a model is served; `nim` has `image_name`, `image_tag` and `gpu`."""
    return {
        "name": name,
        "namespace": namespace,
        "description": description,
        "model": model,
        "nim_deployment": dict(nim),
    }


def deployment_body(namespace: str, name: str, *, config: str, description: str) -> Body:
    """That it is served."""
    return {"name": name, "namespace": namespace, "description": description, "config": f"{namespace}/{config}"}
