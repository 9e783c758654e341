"""The stand-in of NeMo microservices is as strict as the real ones, and keeps what it was told."""

import httpx
import pytest

from nat_finetune.testing.nemo_server import NemoScript, nemo_app
from nat_finetune.testing.nemo_server.bodies import row_problem
from nat_finetune.testing.nemo_server.script import CONFIG
from nat_finetune.testing.serving import serving

PAIR = {"prompt": "p", "chosen_response": "a", "rejected_response": "b"}
TALK = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
JOB = {
    "config": CONFIG,
    "dataset": {"name": "d", "namespace": "ns"},
    "hyperparameters": {"training_type": "dpo", "finetuning_type": "lora"},
    "name": "j",
    "namespace": "ns",
}


@pytest.fixture
def client(tmp_path):
    with serving(nemo_app(tmp_path, NemoScript())) as server, httpx.Client(base_url=server.url) as made:
        made.post("/v1/namespaces", json={"id": "ns"})
        made.post("/v1/datasets", json={"name": "d", "namespace": "ns", "files_url": "hf://datasets/ns/d"})
        yield made


@pytest.mark.parametrize(
    ("path", "content", "status"),
    [
        ("/v1/namespaces", {"json": {"id": "ns"}}, 409),
        ("/v1/namespaces", {"json": {"id": "other", "naem": 1}}, 422),
        ("/v1/namespaces", {"content": b"{", "headers": {"Content-Type": "application/json"}}, 400),
        ("/v1/datastore/namespaces", {"json": {"namespace": "ns"}}, 415),
        ("/v1/hf/api/repos/create", {"json": {"name": "d", "organization": "nowhere", "type": "dataset"}}, 404),
        ("/v1/hf/api/repos/create", {"json": {"name": "a--b", "organization": "ns", "type": "dataset"}}, 422),
        ("/v1/datasets", {"json": {"name": "e", "namespace": "ns", "files_url": "s3://x"}}, 422),
        ("/v1/customization/jobs", {"json": {**JOB, "config": "meta/none@v1"}}, 404),
        ("/v1/customization/jobs", {"json": {**JOB, "hyperparameters": {"training_type": "dpo"}}}, 422),
        ("/v1/customization/jobs", {"json": {**JOB, "dataset": {"name": "none", "namespace": "ns"}}}, 404),
        ("/v1/customization/jobs/none/cancel", {}, 404),
        ("/v1/deployment/configs", {"json": {"name": "c", "namespace": "ns", "model": "ns/none"}}, 422),
    ],
)
def test_what_the_services_refuse_is_refused(client, path, content, status):
    answer = client.post(path, **content)
    assert answer.status_code == status, answer.text
    assert "detail" in answer.json()


def test_a_job_has_its_name_once_and_fails_without_data(client):
    made = client.post("/v1/customization/jobs", json=JOB)
    assert client.post("/v1/customization/jobs", json=JOB).status_code == 409
    told = [client.get(f"/v1/customization/jobs/{made.json()['id']}/status").json() for _ in range(5)]
    assert [status["status"] for status in told] == ["created", "pending", "running", "running", "failed"]
    assert told[-1]["status_logs"][-1]["detail"] == "ns/d has no file below training/"


def test_a_restart_keeps_everything(tmp_path):
    for status in (200, 409):
        with serving(nemo_app(tmp_path)) as server:
            assert httpx.post(f"{server.url}/v1/namespaces", json={"id": "ns"}).status_code == status


@pytest.mark.parametrize(
    ("row", "kind", "fine"),
    [
        (PAIR, "dpo", True),
        ({**PAIR, "prompt": TALK["messages"]}, "dpo", True),
        (TALK, "sft", True),
        (TALK, "dpo", False),
        (PAIR, "sft", False),
        ({**PAIR, "prompt": [{"role": "tool", "content": "x"}]}, "dpo", False),
        ({**PAIR, "chosen_response": None}, "dpo", False),
        ({"messages": TALK["messages"][:1]}, "sft", False),
        ([], "dpo", False),
    ],
)
def test_rows_as_the_customizer_takes_them(row, kind, fine):
    assert (row_problem(row, kind) is None) == fine
