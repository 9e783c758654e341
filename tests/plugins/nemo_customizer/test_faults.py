"""Whatever breaks at whichever request: one job, one deployment, and the run has its result or can be asked again."""

import re
from dataclasses import replace

import pytest
from nat_finetune_plugins.nemo_customizer import client
from nat_finetune_plugins.nemo_customizer.adapter import open_adapter

from nat_finetune.errors import BackendError
from nat_finetune.remote import sending
from nat_finetune.testing import FakeBuilder
from nat_finetune.testing.faults import Fault, FaultKind, faulty
from nat_finetune.testing.items import pair
from nat_finetune.types import Collection
from tests.plugins.nemo_customizer.configs import nemo
from tests.plugins.nemo_customizer.llms import served_model

IMAGE = {"image_name": "nvcr.io/nim/meta/llama-3.1-8b-instruct"}
ATTEMPTS = 3
"""As the core makes of a submission, and a person of `jobs attach`."""
REQUESTS = (
    "GET /v1/customization/configs",
    "GET /v1/customization/jobs",
    "POST /v1/namespaces",
    "POST /v1/datastore/namespaces",
    "POST /v1/hf/api/repos/create",
    "/preupload/",
    "/objects/batch",
    "PUT /v1/hf/lfs/",
    "/lfs/verify",
    "/commit/",
    "POST /v1/datasets",
    "POST /v1/customization/jobs",
    "/status",
    "POST /v1/deployment/configs",
    "POST /v1/deployment/model-deployments",
    "GET /v1/deployment/model-deployments",
    "/v1/models",
)
FAULTS = {
    "dropped before": Fault(FaultKind.DROP_BEFORE),
    "dropped after": Fault(FaultKind.DROP_AFTER),
    "half an answer": Fault(FaultKind.HALF_STREAM),
    "cut JSON": Fault(FaultKind.TRUNCATED_JSON),
    "429": Fault(FaultKind.STATUS, code=429, headers={"Retry-After": "0"}),
    "500": Fault(FaultKind.STATUS, code=500),
    "503 though done": Fault(FaultKind.STATUS_AFTER, code=503),
    "slow": Fault(FaultKind.SLOW, seconds=0.1),
    "restart": Fault(FaultKind.RESTART, seconds=0.05),
}
MOST_TELLING = [("dropped after", "POST /v1/customization/jobs"), ("503 though done", "POST /v1/deployment/model-deployments")]


@pytest.fixture(autouse=True)
def _in_haste(monkeypatch):
    monkeypatch.setattr(sending, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(client, "FIRST_WAIT", 0.01)


async def again(attempt):
    """As the core and its user do after a passing error."""
    for left in reversed(range(ATTEMPTS)):
        try:
            return await attempt()
        except BackendError as error:
            if not error.transient or not left:
                raise
    raise AssertionError


async def a_life(config, folder, llm):
    builder = FakeBuilder(llms={"policy": llm}, folder=folder, entry_name="customizer")
    async with open_adapter(config, builder) as adapter:
        await adapter.health()
        items = tuple(pair("yes", "no", text=f"position {n}", example=n) for n in range(10))
        spec = await adapter.prepare(Collection(items, folder.name, 0, "policy"), None)
        ref = await again(lambda: adapter.submit(spec))
        await again(lambda: adapter.wait(ref))
        return await again(lambda: adapter.result(ref))


async def one_fault(tmp_path, fault):
    with nemo(tmp_path / "server", large_from=200) as (server, config):
        with faulty(server.url, fault) as proxy:
            made = config(entity_host=proxy.url, datastore_host=proxy.url, deploy_on_completion=True, deployment_config=IMAGE)
            async with served_model(server.url) as llm:
                result = await a_life(made, tmp_path / "run-1", llm)
        assert any(passed.fault for passed in proxy.seen), "the fault met no request"
        state = (tmp_path / "server" / "state.json").read_text()
    assert result.backend["status"] == "completed"
    assert len(re.findall(r'"id": "cust-', state)) == 1
    assert result.backend["deployment"]["status"] == "ready"


@pytest.mark.parametrize(("kind", "request_"), MOST_TELLING)
async def test_the_most_telling_faults(tmp_path, kind, request_):
    fault = FAULTS[kind]
    await one_fault(tmp_path, replace(fault, match=f"{request_}$"))


@pytest.mark.slow
@pytest.mark.parametrize("request_", REQUESTS)
@pytest.mark.parametrize("kind", FAULTS)
async def test_every_fault_at_every_request(tmp_path, kind, request_):
    fault = FAULTS[kind]
    await one_fault(tmp_path, replace(fault, match=re.escape(request_)))
