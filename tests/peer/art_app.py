"""Run in an environment with openpipe-art: its own FastAPI app, as `art run` makes it, before a server that does the work.

art_app.py PORT UPSTREAM RECORD: what the app has parsed is dumped by its own models, kept in the file RECORD, and sent on.
Only the backend object is a stand-in (the real one needs a GPU), and torch, which two of its helper modules import.
"""

import json
import os
import sys
import types

import httpx

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
try:
    import torch  # noqa: F401
except ModuleNotFoundError:
    sys.modules["torch"] = types.ModuleType("torch")

from art.model import Model, TrainableModel

PORT, UPSTREAM, RECORD = int(sys.argv[1]), sys.argv[2], sys.argv[3]
client = httpx.AsyncClient(base_url=UPSTREAM, timeout=60)


def dumped_model(model):
    return json.loads(json.dumps(model.safe_model_dump()))


async def passed_on(path, body, **query):
    with open(RECORD, "a", encoding="utf-8") as file:
        file.write(json.dumps({"path": path, "parsed": body, "query": query}) + "\n")
    answer = await client.post(path, json=body, params=query)
    answer.raise_for_status()
    return answer


class Behind:
    """Stands in for `art.local.LocalBackend`."""

    async def close(self) -> None:
        """Nothing runs here."""

    async def register(self, model: Model) -> None:
        """The app parses it as any model, without what a trainable one has: so the step below tells it to the server."""
        with open(RECORD, "a", encoding="utf-8") as file:
            file.write(json.dumps({"path": "/register", "parsed": json.loads(model.model_dump_json())}) + "\n")

    async def _get_step(self, model: TrainableModel) -> int:
        (await client.post("/register", json=dumped_model(model))).raise_for_status()
        return (await passed_on("/_get_step", dumped_model(model))).json()

    async def _delete_checkpoints(self, model: TrainableModel, benchmark: str, benchmark_smoothing: float) -> None:
        asked = {"benchmark": benchmark, "benchmark_smoothing": benchmark_smoothing}
        await passed_on("/_delete_checkpoints", dumped_model(model), **asked)

    async def _delete_checkpoint_files(self, model, steps_to_keep) -> None:
        await passed_on("/_delete_checkpoint_files", {"model": dumped_model(model), "steps_to_keep": steps_to_keep})

    async def _prepare_backend_for_training(self, model, config):
        answer = await passed_on("/_prepare_backend_for_training", {"model": dumped_model(model), "config": config})
        return tuple(answer.json())

    async def _train_model(self, model, trajectory_groups, config, dev_config, verbose=False):
        body = {
            "model": dumped_model(model),
            "trajectory_groups": [group.model_dump(mode="json") for group in trajectory_groups],
            "config": config.model_dump(),
            "dev_config": dev_config,
            "verbose": verbose,
        }
        for line in (await passed_on("/_train_model", body)).text.splitlines():
            yield json.loads(line)

    async def _log(self, model, trajectory_groups, split="val"):
        """Nothing is logged here."""

    async def _experimental_pull_from_s3(self, **asked):
        """Not asked for."""

    async def _experimental_push_to_s3(self, **asked):
        """Not asked for."""

    async def _experimental_deploy(self, **asked):
        """Not asked for."""


local = types.ModuleType("art.local")
local.LocalBackend = Behind
sys.modules["art.local"] = local

from art import cli  # noqa: E402

cli.run(host="127.0.0.1", port=PORT)
