"""Run in an environment with openpipe-art: its own client does what our adapter does, with the same model and groups.

art_client.py SERVER FILE: FILE holds our train body and server config. The client of 0.4.11 is `art.Backend`; 0.5.x has none of
its own, and NAT's RemoteBackend (nvidia-nat-openpipe-art) is the one that is used with it.
"""

import asyncio
import json
import os
import sys
import types
from pathlib import Path

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
try:
    import torch  # noqa: F401
except ModuleNotFoundError:
    sys.modules["torch"] = types.ModuleType("torch")

import art
from art.trajectories import Trajectory, TrajectoryGroup
from art.types import TrainConfig

SERVER, GIVEN = sys.argv[1], json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))


def backend():
    if "beta" in TrainConfig.model_fields:
        from art.backend import Backend

        return Backend(base_url=SERVER)
    from nat.plugins.openpipe.remote_backend import RemoteBackend

    return RemoteBackend(SERVER)


async def main():
    asked, here = GIVEN["body"]["model"], backend()
    model = art.TrainableModel(
        name=asked["name"],
        project=asked["project"],
        base_model=asked["base_model"],
        _internal_config=asked["_internal_config"],
    )
    await here.register(model)
    await here._prepare_backend_for_training(model, GIVEN["server_config"])
    await here._get_step(model)
    groups = []
    for given in GIVEN["body"]["trajectory_groups"]:
        more = {key: given[key] for key in ("metadata", "metrics", "logs") if key in given}
        groups.append(TrajectoryGroup([Trajectory(**trajectory) for trajectory in given["trajectories"]], **more))
    lines = [
        line
        async for line in here._train_model(
            model, groups, TrainConfig(**GIVEN["body"]["config"]), GIVEN["body"]["dev_config"], False
        )
    ]
    if hasattr(here, "_delete_checkpoint_files"):
        await here._delete_checkpoint_files(model, [0, 1])
    else:
        await here._delete_checkpoints(model, "train/reward", 1.0)
    print(json.dumps({"lines": len(lines)}))


asyncio.run(main())
