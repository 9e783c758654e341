"""Runs in the environment that has `nemo-gym`: the two generated servers, on its own base classes, without Ray.

Arguments: folder of a job's files, base URL of the policy, and a file to which the agent's URL is written. Ends with its
standard input. Gym's own command would make a virtual environment for each server and start Ray; no more is left out.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn
import yaml
from nemo_gym import global_config
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.server_utils import ServerClient
from omegaconf import OmegaConf

AGENT, RESOURCES = "nat_finetune_agent", "nat_finetune"


def main(job: Path, policy: str, ready: Path) -> None:
    tree = yaml.safe_load((job / "gym.yaml").read_text())
    tree |= {"policy_base_url": [policy], "policy_model_name": "policy", "head_server": {"host": "127.0.0.1", "port": 1}}
    tree |= {"global_aiohttp_connector_limit": 100, "global_aiohttp_connector_limit_per_host": 100}
    kinds = {AGENT: "responses_api_agents", RESOURCES: "resources_servers"}
    ports = {name: free_port() for name in kinds}
    for name, kind in kinds.items():
        tree[name][kind][name] |= {"host": "127.0.0.1", "port": ports[name]}
    whole = OmegaConf.create(tree)
    global_config._GLOBAL_CONFIG_DICT = whole
    client = ServerClient(head_server_config=BaseServerConfig(host="127.0.0.1", port=1), global_config_dict=whole)
    for name, kind in kinds.items():
        app = load(job / "gym" / kind / name / "app.py", name)
        made = app.NatFinetuneAgent if name == AGENT else app.NatFinetuneResourcesServer
        given = OmegaConf.to_container(whole[name][kind][name], resolve=True) | {"name": name}
        server = made(config=made.model_fields["config"].annotation.model_validate(given), server_client=client)
        web = server.setup_webserver()
        server.setup_liveness(web)
        server.setup_exception_middleware(web)
        serve(web, ports[name])
    ready.write_text(f"http://127.0.0.1:{ports[AGENT]}")
    sys.stdin.read()


def load(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def serve(web: Any, port: int) -> None:
    server = uvicorn.Server(uvicorn.Config(web, host="127.0.0.1", port=port, log_level="warning"))
    # A process each, as with Gym: its HTTP client belongs to one event loop.
    multiprocessing.get_context("fork").Process(target=server.run, daemon=True).start()


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
