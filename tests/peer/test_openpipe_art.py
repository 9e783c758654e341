"""openpipe-art itself judges our requests: its FastAPI app parses them, and its client's requests are held beside ours.

Each generation lives in an environment of its own, that NAT_FINETUNE_ART_0_4_PYTHON and NAT_FINETUNE_ART_0_5_PYTHON name
(openpipe-art 0.4.11, and 0.5.17 with nvidia-nat-openpipe-art 1.9.0; fastapi, uvicorn, httpx; no torch, no GPU).
"""

import contextlib
import json
import os
import socket
import subprocess
import time
from pathlib import Path

import httpx
import pytest
from nat_finetune_plugins.openpipe_art import arguments

from nat_finetune.types import JobState
from tests.plugins.openpipe_art.bench import art, config, connected, groups, trained
from tests.plugins.openpipe_art.test_trajectories import BAD, converted, one_turn, with_tools

HERE = Path(__file__).parent
PYTHONS = {g: os.environ.get(f"NAT_FINETUNE_ART_{g.replace('.', '_')}_PYTHON") for g in ("0.4", "0.5")}
SETTINGS = {
    "training": {"learning_rate": 2e-5, "beta": 0.25, "weight_decay": 0.01},
    "init_args": {"max_seq_length": 4096},
    "engine_args": {"gpu_memory_utilization": 0.9, "max_logprobs": 20},
    "server_config": {"server_args": {"tool_call_parser": "hermes"}},
}

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("default")]


@pytest.fixture(params=PYTHONS)
def generation(request):
    if PYTHONS[request.param] is None:
        pytest.skip(f"NAT_FINETUNE_ART_{request.param.replace('.', '_')}_PYTHON names no Python with openpipe-art")
    return request.param


@contextlib.contextmanager
def real_app(generation, upstream, record):
    """The package's own app, before the test server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [PYTHONS[generation], str(HERE / "art_app.py"), str(port), upstream, str(record)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            for _ in range(600):
                with contextlib.suppress(httpx.HTTPError):
                    httpx.get(f"http://127.0.0.1:{port}/healthcheck")
                    break
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def differences(ours, theirs, where=""):
    """Paths at which two JSON values differ, with both sides."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted(ours.keys() | theirs.keys()):
            yield from differences(ours.get(key, "absent"), theirs.get(key, "absent"), f"{where}.{key}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(one, other, f"{where}[{number}]")
    elif ours != theirs:
        yield where, ours, theirs


async def test_arts_own_app_parses_all_that_we_send(tmp_path, generation):
    """The whole conversation goes through it: what its models dump is what we sent, field by field, and the run goes on."""
    record = tmp_path / "parsed.jsonl"
    with art(tmp_path / "art", generation) as (server, _), real_app(generation, server.url, record) as url:
        settings = config(url, patience=5, delete_old_checkpoints=True, **SETTINGS)
        async with connected(settings, tmp_path) as (adapter, _):
            sent = []
            for step in range(2):
                *_, result = await trained(adapter, step)
                sent += adapter._bodies.values()
        assert (result.policy.version, result.optimiser_steps) == (2, 1)
    parsed = [json.loads(line) for line in record.read_text().splitlines()]
    trains = [entry["parsed"] for entry in parsed if entry["path"] == "/_train_model"]
    assert len(trains) == len(sent) == 2
    found = [difference for ours, theirs in zip(sent, trains, strict=True) for difference in differences(ours, theirs)]
    assert found == []
    registered = next(entry["parsed"] for entry in parsed if entry["path"] == "/register")
    assert list(differences({key: sent[0]["model"][key] for key in registered}, registered)) == []
    models = [entry["parsed"].get("model", entry["parsed"]) for entry in parsed if entry["path"] != "/register"]
    assert all(list(differences(sent[0]["model"], model)) == [] for model in models)
    print(f"\n{generation}: {len(parsed)} requests parsed by ART's app: {sorted({entry['path'] for entry in parsed})}")


def test_every_kind_of_trajectory_is_taken(tmp_path, generation):
    """Tools, their answers, several histories, bad rollouts beside good ones: parsed, and dumped as we sent it."""
    from nat_finetune_plugins.openpipe_art.wire import TrainableModel, train_body

    from tests.plugins.openpipe_art.test_trajectories import NEW, OLD

    dialect = OLD if generation == "0.4" else NEW
    rollouts = [with_tools(0, 1.0), with_tools(1, 0.0), one_turn(2, 0.5)]
    rollouts += [one_turn(3 + n, 0.5, **changes) for n, (changes, _, _) in enumerate(BAD.values())]
    made = converted(*rollouts, dialect=dialect)
    model = TrainableModel("m", "p", "base", {})
    body = train_body(model, dialect, made.groups, learning_rate=1e-5, kl=0.1)
    record = tmp_path / "parsed.jsonl"
    with art(tmp_path / "art", generation) as (server, _), real_app(generation, server.url, record) as url:
        httpx.post(f"{url}/register", json=model.body(dialect)).raise_for_status()
        answer = httpx.post(f"{url}/_train_model", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    parsed = [json.loads(line)["parsed"] for line in record.read_text().splitlines()][-1]
    assert list(differences(json.loads(json.dumps(body)), parsed)) == []
    print(f"\n{generation}: {made.trajectories} trajectories taken, {len(made.dropped)} left out before")


EXPECTED = {
    "0.4": {"/_prepare_backend_for_training", "/_get_step", "/register", "/_train_model", "/_delete_checkpoints"},
    "0.5": {"/_prepare_backend_for_training", "/_get_step", "/register", "/_train_model", "/_delete_checkpoint_files"},
}


async def test_the_requests_of_arts_client_are_ours(tmp_path, generation):
    folder = tmp_path / "ours"
    folder.mkdir()
    with art(tmp_path / "art", generation) as (server, _):
        settings = config(server.url, delete_old_checkpoints=True, **SETTINGS)
        async with connected(settings, folder) as (adapter, _):
            spec = await adapter.prepare(groups(), None)
            assert (await adapter.wait(await adapter.submit(spec))).state is JobState.COMPLETED
            body = next(iter(adapter._bodies.values()))
        ours = {r.path.partition("?")[0]: r for r in server.requests if r.method == "POST" and not r.path.startswith("/v1")}
    given = tmp_path / "given.json"
    prepared = ours["/_prepare_backend_for_training"].json
    given.write_text(json.dumps({"body": body, "server_config": prepared["config"]}))
    with art(tmp_path / "theirs", generation) as (server, _):
        command = [PYTHONS[generation], str(HERE / "art_client.py"), server.url, str(given)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        theirs = {r.path.partition("?")[0]: r for r in server.requests if r.method == "POST"}
    assert theirs.keys() == EXPECTED[generation] == ours.keys() & theirs.keys()
    found = {path: list(differences(ours[path].json, theirs[path].json)) for path in theirs}
    keep = found.pop("/_delete_checkpoint_files", [])  # the steps to keep are the caller's choice
    assert all(".steps_to_keep" in where for where, *_ in keep)
    assert {path: rows for path, rows in found.items() if rows} == {}
    fields = sum(len(list(differences(request.json, None))) or 1 for request in ours.values())
    print(f"\n{generation}: {len(theirs)} requests compared, {fields} bodies, differences: none but the steps to keep {keep}")


def test_the_keys_that_we_know_are_those_of_the_package(generation):
    script = (
        "import json,sys,types;sys.modules.setdefault('torch',types.ModuleType('torch'));"
        "from art.dev.model import InitArgs,TrainerArgs;from art.dev.engine import EngineArgs;"
        "from art.dev.openai_server import ServerArgs;"
        "print(json.dumps({k.__name__:sorted(k.__annotations__) for k in (InitArgs,TrainerArgs,EngineArgs,ServerArgs)}))"
    )
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run([PYTHONS[generation], "-c", script], capture_output=True, text=True, check=True, env=environment)
    package = {name: set(keys) for name, keys in json.loads(done.stdout.splitlines()[-1]).items()}
    since = {"enable_log_requests"} if generation == "0.4" else set()
    for name, known, prefix in (
        ("InitArgs", arguments.INIT_ARGS, "init_args"),
        ("EngineArgs", arguments.ENGINE_ARGS, "engine_args"),
        ("ServerArgs", arguments.SERVER_ARGS, "server_config.server_args"),
    ):
        refused = {key.removeprefix(f"{prefix}.") for key in arguments.REFUSED if key.startswith(f"{prefix}.")}
        assert known - since <= package[name]
        assert package[name] - known == refused, "every key of the package is passed on, or refused with a reason"
    assert package["TrainerArgs"] >= arguments.TRAINER_ARGS | {"learning_rate", "beta"}
