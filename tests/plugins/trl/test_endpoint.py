"""The chat endpoint of a GRPO job: what it says that it sampled is what the model gives, whatever else is in the batch."""

from __future__ import annotations

import importlib.util
import threading
from importlib.resources import files

import httpx
import pytest

from nat_finetune.local.scoring import score
from tests.fixtures.training import tiny_policy


@pytest.fixture(scope="module")
def endpoint_module(tmp_path_factory):
    path = tmp_path_factory.mktemp("programs") / "endpoint.py"
    path.write_text(files("nat_finetune_plugins.trl.scripts").joinpath("endpoint.py.tmpl").read_text())
    spec = importlib.util.spec_from_file_location("trl_endpoint", path)
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["trl_endpoint"] = module  # its dataclass looks itself up there
    spec.loader.exec_module(module)
    yield module
    del sys.modules["trl_endpoint"]


def ask(endpoint, text, **changes):
    body = {"model": "policy", "messages": [{"role": "user", "content": text}], "max_tokens": 6, "seed": 5, "temperature": 0.7}
    headers = {"authorization": f"Bearer {endpoint.key}"}
    return httpx.post(f"{endpoint.url}/chat/completions", json=body | changes, headers=headers, timeout=30)


def answers(module, policy, asked):
    """The answers to requests that are there at once."""
    endpoint = module.ChatEndpoint(policy.tokenizer, temperature=0.7, max_batch=8, context=policy.max_context)
    endpoint.stop_ids = set(policy.format.stop_ids)
    found = [None] * len(asked)

    def one(place):
        text, changes = asked[place]
        found[place] = ask(endpoint, text, **changes)

    threads = [threading.Thread(target=one, args=(place,)) for place in range(len(asked))]
    for thread in threads:
        thread.start()
    endpoint.serve_until(lambda: not any(thread.is_alive() for thread in threads), policy.model)
    endpoint.server.shutdown()
    endpoint.server.server_close()
    return found


def test_ids_and_logprobs_are_the_models_and_do_not_depend_on_the_batch(endpoint_module):
    with tiny_policy() as policy:
        asked = [
            ("move 5", {"seed": 1}),
            ("the quick brown fox", {"seed": 2}),
            ("move 5", {"seed": 3, "max_tokens": 2}),
        ]
        together = [answer.json() for answer in answers(endpoint_module, policy, asked)]
        alone = [answers(endpoint_module, policy, [one])[0].json() for one in asked]
        for one, other, (text, changes) in zip(together, alone, asked, strict=True):
            choice = one["choices"][0]
            assert choice["token_ids"] == other["choices"][0]["token_ids"]
            prompt = policy.format.render([{"role": "user", "content": text}])
            assert tuple(one["prompt_token_ids"]) == prompt
            (expected,) = score(policy._forward, [(prompt, tuple(choice["token_ids"]))], temperature=0.7, stop_ids=())
            said = [token["logprob"] for token in choice["logprobs"]["content"]]
            assert said == pytest.approx(list(expected), abs=1e-4)
            ended = choice["token_ids"][-1] in policy.format.stop_ids
            assert choice["finish_reason"] == ("stop" if ended else "length")
            assert len(choice["token_ids"]) <= changes.get("max_tokens", 6)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"temperature": 1.0}, "TRL trains at 0.7"),
        ({"tools": [{"type": "function"}]}, "text only"),
        ({"top_p": 0.5}, "change the distribution"),
        ({"messages": "no"}, ""),
    ],
)
def test_what_can_not_be_trained_is_refused(endpoint_module, changes, said):
    with tiny_policy() as policy:
        (answer,) = answers(endpoint_module, policy, [("move 5", changes)])
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]
