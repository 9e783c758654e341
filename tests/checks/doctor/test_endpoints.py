"""One small request says whether an endpoint answers, as whom, and with log-probabilities."""

import pytest

from nat_finetune.checks.doctor.endpoints import endpoint_findings
from nat_finetune.config.schema import RunConfig
from nat_finetune.registry import Registry
from tests.fixtures.endpoint import Answer, endpoint_server

REGISTRY = Registry.installed()


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def answer(model="tuned", status="200 OK", **choice):
    message = {"role": "assistant", "content": "yes"}
    body = {"model": model, "choices": [{"message": message, "finish_reason": "stop", **choice}]}
    return Answer(body, status)


async def asked(reply, **settings):
    async with endpoint_server(reply) as server:
        llm = {"_type": "openai", "model_name": "tuned", "base_url": server.url, "api_key": "k", **settings}
        found = await endpoint_findings(RunConfig.read({"llms": {"far": llm}}, REGISTRY), REGISTRY, {"far"})
        return [(finding.id, finding.severity.value) for finding in found], server.asked


async def test_one_that_answers_is_asked_once_and_briefly():
    found, requests = await asked(answer())
    assert found == []
    assert [request.body["max_tokens"] for request in requests] == [4]


async def test_the_base_in_place_of_the_tuned_model():
    assert (await asked(answer("base")))[0] == [("endpoint.other-model", "error")]


async def test_the_release_of_a_name_is_no_other_model():
    assert (await asked(answer("tuned-2025-01-31")))[0] == []


async def test_no_logprobs_and_no_token_ids():
    assert (await asked(answer(), logprobs=True))[0] == [("endpoint.no-logprobs", "error")]
    assert (await asked(answer(), return_token_ids=True))[0] == [("endpoint.no-logprobs", "error")]
    content = [{"logprob": -0.1}]
    assert (await asked(answer(logprobs={"content": content}), logprobs=True))[0] == []


async def test_an_error_answer_is_not_tried_again():
    found, requests = await asked(answer(status="503 Service Unavailable"))
    assert found == [("endpoint.failed", "error")]
    assert len(requests) == 1
