"""What our client asks of NeMo microservices is what the real clients ask, field by field, but for what is listed here.

nemo-microservices and huggingface_hub live in an environment of their own, whose Python NAT_FINETUNE_NEMO_PYTHON names:

    python -m venv nemo && nemo/bin/pip install nemo-microservices==1.5.0 huggingface_hub
    NAT_FINETUNE_NEMO_PYTHON=nemo/bin/python pytest -m peer -s tests/peer/test_nemo_microservices.py
"""

import json
import os
import re
import subprocess
from pathlib import Path
from urllib.parse import parse_qsl

import pytest
from nat_finetune_plugins.nemo_customizer.adapter import open_adapter
from nat_finetune_plugins.nemo_customizer.deployment import _config_name

from nat_finetune.testing import FakeBuilder
from nat_finetune.testing.items import pair
from nat_finetune.types import Collection
from tests.plugins.nemo_customizer.configs import API_KEY, HF_TOKEN, nemo
from tests.plugins.nemo_customizer.llms import served_model

PYTHON = os.environ.get("NAT_FINETUNE_NEMO_PYTHON")
pytestmark = [
    pytest.mark.peer,
    pytest.mark.skipif(PYTHON is None, reason="NAT_FINETUNE_NEMO_PYTHON names no Python with nemo-microservices"),
]

HEADERS = ("authorization", "content-type", "accept", "content-length", "transfer-encoding")
NO_COUNTERPART = {
    ("GET", "/v1/datastore/namespaces/ns"): "health: whether the data store answers, and takes the token",
    ("GET", "/v1/datasets/ns/DATASET"): "find: the revision of a job that is there already",
    ("GET", "/nim/ns/DEPLOYMENT/v1/models"): "what the deployed model is called; OpenAI's API",
}
"""Requests of ours that the real clients have no call for in this sequence."""
LARGE = {("lfs batch", "body.transfers"): (["basic"], ["basic", "multipart"])}
"""Ours and theirs: multipart is for files of 5 GB and more."""


async def ours(make_config, server, folder):
    """The adapter's whole life: one job that is deployed, one that is cancelled; returns what the clients need to know."""
    config = make_config(
        deploy_on_completion=True, deployment_config={"image_name": "nvcr.io/nim/meta/llama-3.1-8b-instruct", "gpu": 2}
    )
    async with served_model(server.url) as llm, open_adapter(config, _builder(llm, folder)) as adapter:
        items = tuple(pair("a", "b", text=f"position {n} " + "x" * 200, example=n) for n in range(40))
        await adapter.health()
        spec = await adapter.prepare(Collection(items, folder.name, 0, "policy"), None)
        ref = await adapter.submit(spec)
        await adapter.wait(ref)
        await adapter.result(ref)
        await adapter.logs(ref)
        second = await adapter.prepare(Collection(items, folder.name, 1, "policy"), None)
        await adapter.cancel(await adapter.submit(second))
        job = adapter._preparation.job(spec)
        settings = config.deployment_config
        name = adapter._deployments.name(folder.name)
    return {
        "namespace": "ns",
        "repo": spec.payload["dataset"],
        "files": [(file["path"], str(folder / file["place"])) for file in spec.payload["files"]],
        "summary": f"Data of run {folder.name}, step 0",
        "description": f"nat-finetune training data of run {folder.name}",
        "fields": job["custom_fields"],
        "job": job,
        "deployment_config": {
            "name": _config_name(folder.name),
            "namespace": "ns",
            "description": settings.description,
            "nim_deployment": settings.nim(),
        },
        "deployment": {
            "name": name,
            "namespace": "ns",
            "description": settings.description,
            "config": f"ns/{_config_name(folder.name)}",
        },
    }


def _builder(llm, folder):
    return FakeBuilder(llms={"policy": llm}, folder=folder, entry_name="customizer")


def theirs(known, url):
    told = {**known, "url": url, "api_key": API_KEY, "hf_token": HF_TOKEN}
    script = Path(__file__).with_name("nemo_clients.py")
    ran = subprocess.run([PYTHON, script], input=json.dumps(told), capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def body_of(request):
    kind = request.headers.get("content-type", "")
    if not request.body:
        return None
    if "ndjson" in kind:
        return [json.loads(line) for line in request.body.splitlines()]
    return json.loads(request.body) if "json" in kind else request.body.decode()


def fields(request):
    """Every field of a request that the service can see, flat."""
    path, _, query = request.path.partition("?")
    found = {"method": request.method, "path": path, "query": dict(parse_qsl(query))}
    found |= {f"header {name}": request.headers.get(name) for name in HEADERS}
    if "json" in request.headers.get("content-type", ""):
        found.pop("header content-length")  # of the same value in other white space
    body = body_of(request)
    found |= {f"body.{key}": value for key, value in body.items()} if isinstance(body, dict) else {"body": body}
    return found


def first_of_each(requests, names):
    """The first request of each kind; further ones are polls."""
    found = {}
    for request in requests:
        text = request.path.partition("?")[0]
        for pattern, word in names.items():
            text = re.sub(pattern, word, text)
        of_file = f" {request.json['oid']}" if text.endswith("/verify") else ""  # files are uploaded in no order
        found.setdefault((request.method, re.sub(r"cust-\d+", "JOB", text) + of_file), request)
    return found


@pytest.mark.parametrize("large_from", [10**9, 1000], ids=["regular", "lfs"])
async def test_the_requests_are_those_of_the_real_clients(tmp_path, large_from, capsys):
    folder = tmp_path / "run-1"
    folder.mkdir()
    with nemo(tmp_path / "ours", large_from=large_from) as (server, make_config):
        known = await ours(make_config, server, folder)
        sent = server.requests
    with nemo(tmp_path / "theirs", large_from=large_from) as (other, _):
        versions = theirs(known, other.url)
        expected = other.requests
    names = {r"nat-dpo-run-1-[0-9a-f]{8}": "DATASET", known["deployment"]["name"]: "DEPLOYMENT"}
    mine, real = first_of_each(sent, names), first_of_each(expected, names)
    assert mine.keys() - real.keys() - NO_COUNTERPART.keys() == set()
    assert real.keys() - mine.keys() == set()
    compared, different = 0, {}
    for key in real:
        one, other_one = fields(mine[key]), fields(real[key])
        compared += len(one.keys() | other_one.keys())
        for field in one.keys() | other_one.keys():
            if one.get(field) != other_one.get(field):
                label = "lfs batch" if key[1].endswith("/objects/batch") else " ".join(key)
                different[label, field] = (one.get(field), other_one.get(field))
    assert different == (LARGE if large_from == 1000 else {})
    with capsys.disabled():
        print(f"\n{versions}: {len(real)} requests, {compared} fields, {compared - len(different)} equal: {different or ''}")
