"""Rollouts over HTTP: the caller's endpoint is called, tokens and rewards come back, bad requests hear what is wrong."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from nat_finetune.config.load import load_config
from nat_finetune.errors import ConfigError
from nat_finetune.registry import Registry
from nat_finetune.rollout_server import TOKEN_VARIABLE, listening, rollout_app, serve_rollouts
from nat_finetune.served_rollouts import served_rollouts
from tests.fixtures.endpoint import Answer, EndpointServer
from tests.source_tree import ROOT

CONFIG = ROOT / "configs" / "grpo_tic_tac_toe.yml"
WON = {"id": "one move from the end", "input": "XX.OO....|X"}
"""X wins on square 3."""


def completion(text, *, prompt=(1, 2, 3), sampled=(7, 1), logprobs=(-0.5, -0.1)):
    choice = {
        "message": {"role": "assistant", "content": text},
        "finish_reason": "stop",
        "token_ids": list(sampled),
        "logprobs": {"content": [{"logprob": value} for value in logprobs]},
    }
    return {"choices": [choice], "prompt_token_ids": list(prompt)}


@asynccontextmanager
async def endpoint(*answers):
    server = EndpointServer([Answer(body) if not isinstance(body, Answer) else body for body in answers])
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listener:
        server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1"
        yield server


@asynccontextmanager
async def service(*overrides, token=None, max_concurrency=None, path=CONFIG):
    registry = Registry.installed()
    config = load_config(path, overrides=overrides, registry=registry).config
    async with (
        served_rollouts(config, registry, max_concurrency=max_concurrency) as rollouts,
        listening(rollout_app(rollouts, token=token), "127.0.0.1", 0) as url,
        httpx.AsyncClient(base_url=url, timeout=20) as client,
    ):
        yield client


def asked(url, **changes):
    return {"example": WON, "seed": 5, "endpoint": {"base_url": url, "model": "policy"}} | changes


async def test_a_rollout_runs_with_the_callers_model_and_gives_its_tokens_and_rewards():
    async with endpoint(completion("3")) as policy, service() as client:
        answer = (await client.post("/rollouts", json=asked(policy.url))).json()
        health = (await client.get("/health")).json()
    assert answer["failure"] is None
    assert answer["output"]["result"] == 1.0
    (segment,) = answer["segments"]
    assert (segment["prompt_ids"], segment["completion_ids"], segment["loss_mask"]) == ([1, 2, 3], [7, 1], [1, 1])
    assert segment["logprobs"] == [-0.5, -0.1]
    assert answer["reward"] == 1.0
    assert answer["reward_components"] == {"outcome": 1.0}
    assert (health["status"], health["running"], health["ended"]) == ("ok", 0, 1)
    assert health["examples"] > 100
    body = policy.asked[0].body
    assert policy.asked[0].path == "/v1/chat/completions"
    assert (body["model"], body["return_token_ids"]) == ("policy", True)
    assert (body["max_tokens"], body["temperature"]) == (2, 1.0)  # the config's sampling settings, though nothing is loaded


async def test_a_config_whose_backend_serves_the_target_needs_no_backend_here():
    art = ROOT / "configs" / "grpo_tic_tac_toe_openpipe_art.yml"
    async with endpoint(completion("3")) as policy, service(path=art) as client:
        answer = (await client.post("/rollouts", json=asked(policy.url))).json()
    assert answer["failure"] is None
    assert answer["reward_components"] == {"outcome": 1.0, "legal_rate": 1.0}
    assert len(answer["segments"]) == 1


async def test_turns_that_extend_one_another_are_one_segment_with_a_mask():
    turns = completion("5"), completion("9", prompt=(1, 2, 3, 7, 1, 30, 31), sampled=(8, 1), logprobs=(-0.2, -0.3))
    async with endpoint(*turns, completion("1", prompt=(4,))) as policy, service() as client:
        body = asked(policy.url, example={"id": "new", "input": ".........|X"})
        answer = (await client.post("/rollouts", json=body)).json()
    first = answer["segments"][0]
    assert first["prompt_ids"] == [1, 2, 3]
    assert first["completion_ids"] == [7, 1, 30, 31, 8, 1]
    assert first["loss_mask"] == [1, 1, 0, 0, 1, 1]
    assert first["logprobs"] == [-0.5, -0.1, 0.0, 0.0, -0.2, -0.3]
    assert [(turn["start"], turn["end"]) for turn in first["turns"]] == [(0, 2), (4, 6)]
    assert answer["segments"][1]["prompt_ids"] == [4]


async def test_each_caller_gets_its_own_model():
    def slowly(token):
        return Answer(completion("3", sampled=(token, 1)), seconds_per_byte=0.0005)

    async with endpoint(slowly(7)) as one, endpoint(slowly(8)) as other, service() as client:
        urls = [one.url, other.url] * 4
        answers = await asyncio.gather(*(client.post("/rollouts", json=asked(url)) for url in urls))
    assert [answer.json()["segments"][0]["completion_ids"] for answer in answers] == [[7, 1], [8, 1]] * 4


async def test_an_id_names_an_example_of_the_config_and_a_seed_is_kept():
    async with endpoint(completion("x")) as policy, service() as client:
        body = asked(policy.url, example_id="game-0001", generation=3)
        del body["example"]
        refused = await client.post("/rollouts", json=body)
        known = load_config(CONFIG, registry=Registry.installed()).config.eval.general.dataset
        first = json.loads(Path(known.file_path).read_text().splitlines()[0])
        made = (await client.post("/rollouts", json=body | {"example_id": first["id"]})).json()
    assert refused.status_code == 404
    assert "there is no example 'game-0001'" in refused.json()["error"]["message"]
    assert (made["example_id"], made["generation"], made["seed"]) == (first["id"], 3, 5)
    assert made["failure"]["cause"] == "policy"  # x is no move
    assert made["reward"] == 0.0
    assert made["segments"]


async def test_what_fails_at_the_caller_leaves_the_reward_unknown():
    async with endpoint(Answer("no", status="400 Bad Request")) as policy, service() as client:
        answer = (await client.post("/rollouts", json=asked(policy.url))).json()
    assert answer["failure"]["cause"] == "infrastructure"
    assert "400 Bad Request" in answer["failure"]["message"]
    assert (answer["reward"], answer["reward_components"], answer["segments"]) == (None, {"outcome": None}, [])


@pytest.mark.parametrize(("said", "known"), [("raw", False), ("processed", True)])
async def test_logprobs_at_another_temperature_are_kept_only_where_the_caller_scales_them(said, known):
    async with endpoint(completion("3")) as policy, service("llms.policy.temperature=0.7") as client:
        where = {"base_url": policy.url, "model": "policy", "logprobs": said}
        answer = (await client.post("/rollouts", json=asked(policy.url, endpoint=where))).json()
    assert policy.asked[0].body["temperature"] == 0.7
    assert bool(answer["segments"]) is known
    assert [drop["reason"] for drop in answer["dropped"]] == ([] if known else ["no_logprobs"])


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"endpoint": {"base_url": "ftp://x", "model": "m"}}, 422, "endpoint.base_url"),
        ({"endpoint": {"base_url": "http://x", "model": "m", "api_kye": "s3cret-key"}}, 422, "endpoint.api_kye"),
        ({"example_id": 1}, 422, "either example_id or example"),
        ({"seed": -1}, 422, "seed"),
        ({"example": {"input": 1}}, 422, "example.id"),
    ],
)
async def test_a_bad_request_is_told_what_is_wrong_with_it(change, status, said):
    async with service() as client:
        answer = await client.post("/rollouts", json=asked("http://127.0.0.1:9", **change))
    assert answer.status_code == status
    assert said in answer.json()["error"]["message"]
    assert "s3cret-key" not in answer.text


async def test_what_is_no_request_at_all():
    async with service() as client:
        assert (await client.post("/rollouts", content=b"{half")).status_code == 422
        assert (await client.post("/rollouts", content=b" " * (16 * 2**20 + 1))).status_code == 413
        gone, wrong = await client.get("/nowhere"), await client.get("/rollouts")
    assert (gone.status_code, wrong.status_code) == (404, 405)
    assert "POST /rollouts" in gone.json()["error"]["message"]


async def test_a_token_is_asked_for():
    async with service(token="t0ken") as client:
        statuses = [
            (await client.get("/health", headers=headers)).status_code
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer t0ken"})
        ]
    assert statuses == [401, 401, 200]


async def test_an_open_address_needs_a_token(monkeypatch):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    with pytest.raises(ConfigError, match=TOKEN_VARIABLE):
        await serve_rollouts(None, host="0.0.0.0", port=0, on_ready=print, until=asyncio.Event().wait)


async def test_no_more_rollouts_than_allowed_run_at_once_and_a_caller_that_hangs_up_frees_its_place():
    async with endpoint(Answer(completion("3"), seconds_per_byte=0.02)) as policy, service(max_concurrency=2) as client:
        waiting = [asyncio.create_task(client.post("/rollouts", json=asked(policy.url))) for _ in range(5)]
        while (await client.get("/health")).json()["running"] < 2:
            await asyncio.sleep(0.02)
        assert len(policy.asked) <= 2
        for task in waiting:
            task.cancel()
        async with asyncio.timeout(5):
            while (await client.get("/health")).json()["running"]:
                await asyncio.sleep(0.02)
        assert len(policy.asked) <= 3  # those that waited never began, but for one that took a freed place for a moment


async def test_an_evaluator_that_compares_rollouts_is_refused(monkeypatch):
    registry = Registry.installed()
    config = load_config(CONFIG, registry=registry).config

    class Comparing:
        async def __call__(self, example, rollout):
            return None

        async def evaluate_group(self, example, rollouts):
            return []

    async def made(self, name):
        return Comparing()

    monkeypatch.setattr("nat_finetune.compose.Composition.get_evaluator", made)
    with pytest.raises(ConfigError, match="come one by one"):
        async with served_rollouts(config, registry):
            pass


@pytest.mark.parametrize("end", ["terminate", "stdin"])
def test_the_command_says_where_it_serves_and_ends_cleanly_without_the_model(tmp_path, end):
    ready = tmp_path / "ready.json"
    program = "import sys; from nat_finetune.cli.main import main; code = main(); print('torch' in sys.modules); sys.exit(code)"
    command = ["serve-rollouts", str(CONFIG), "--ready-file", str(ready), "--while-stdin"]
    server = subprocess.Popen(
        [sys.executable, "-c", program, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ
    )
    line = server.stdout.readline()
    url = json.loads(ready.read_text())["url"]
    assert url in line
    assert httpx.get(f"{url}/health").json()["status"] == "ok"
    if end == "stdin":
        server.stdin.close()
    else:
        server.send_signal(signal.SIGTERM)
    assert server.wait(15) == 0
    assert server.stdout.read().strip() == "False"
    server.stdout.close()
    server.stdin.close()


async def test_a_caller_that_hangs_up_amid_its_request_leaves_no_traceback(caplog):
    async with service() as client:
        where = client.base_url
        _, writer = await asyncio.open_connection(where.host, where.port)
        writer.write(b"POST /rollouts HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        await asyncio.sleep(0.2)
        assert (await client.get("/health")).status_code == 200
    assert "Traceback" not in caplog.text
    assert "Exception" not in caplog.text
