"""The generated servers on the real base classes of NeMo Gym, asked as NeMo RL asks, over the real rollout service.

NAT_FINETUNE_GYM_PYTHON names a Python (3.12 or newer) that has `nemo-gym`, which brings omegaconf.
"""

import asyncio
import json
import os
import subprocess
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from nat_finetune.types import RewardTerm, Target
from tests.plugins.nemo_rl import rules
from tests.plugins.nemo_rl.made import adapter, collection, pairs, settings
from tests.plugins.nemo_rl.stock import make_checkout
from tests.plugins.nemo_rl.test_grpo_job import groups, handed_over, made
from tests.test_rollout_server import WON, completion, endpoint, service

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]
PYTHON = os.environ.get("NAT_FINETUNE_GYM_PYTHON")
SERVERS = Path(__file__).with_name("gym_servers.py")
LONGER = {"id": "new", "input": ".........|X"}
WEIGHTED = Target(("choose_move",), "policy", (RewardTerm("outcome", 2.0),))


@pytest.fixture(autouse=True)
def _has_gym():
    if PYTHON is None:
        pytest.skip("NAT_FINETUNE_GYM_PYTHON names no Python that has nemo-gym")


@asynccontextmanager
async def gym(tmp_path, policy, **algorithm):
    """A client of the agent server; rows are posted to its /run."""
    async with service() as rollouts, servers(tmp_path, str(rollouts.base_url).rstrip("/"), policy.url, algorithm) as client:
        yield client


@asynccontextmanager
async def servers(tmp_path, rollouts, policy, algorithm):
    config = groups(make_checkout(tmp_path / "rl"), algorithm={"rollouts": {"url": rollouts, "retries": 1, **algorithm}})
    spec = await made(config, tmp_path / "run", WEIGHTED).prepare(handed_over(), None)
    job, ready = tmp_path / "run" / "nemo_rl" / spec.payload["folder"], tmp_path / "ready"
    process = subprocess.Popen(
        ["nice", "-n", "10", PYTHON, str(SERVERS), str(job), policy, str(ready)],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
    )
    try:
        async with asyncio.timeout(120):
            while not ready.exists() or not ready.read_text():
                assert process.poll() is None, process.stderr.read().decode()[-3000:]
                await asyncio.sleep(0.1)
        async with httpx.AsyncClient(base_url=ready.read_text(), timeout=60) as client:
            async with asyncio.timeout(60):
                while True:
                    try:
                        await client.get("/")
                        break
                    except httpx.HTTPError:
                        await asyncio.sleep(0.1)
            yield client
    finally:
        process.stdin.close()
        process.wait(20)
        process.stderr.close()


def row(example):
    """As NeMo RL posts a line of the dataset."""
    return {
        "responses_create_params": {"input": [{"role": "user", "content": str(example["input"])}]},
        "agent_ref": {"type": "responses_api_agents", "name": "nat_finetune_agent"},
        "example": example,
    }


async def test_a_rollout_comes_back_as_nemo_rl_wants_it(tmp_path):
    async with endpoint(completion("3")) as policy, gym(tmp_path, policy) as client:
        answer = (await client.post("/run", json=row(WON))).json()
    assert answer["reward"] == 2.0
    assert answer["reward_components"] == {"outcome": 2.0}
    (item,) = answer["response"]["output"]
    assert item["prompt_token_ids"] == [1, 2, 3]
    assert item["generation_token_ids"] == [7, 1]
    assert item["generation_log_probs"] == [-0.5, -0.1]
    rules.postprocess(answer)
    assert policy.asked[0].body["model"] == "policy"


async def test_turns_that_extend_one_another_are_one_conversation(tmp_path):
    second = completion("9", prompt=(1, 2, 3, 7, 1, 30, 31), sampled=(8, 1), logprobs=(-0.2, -0.3))
    third = completion("1", prompt=(1, 2, 3, 7, 1, 30, 31, 8, 1, 40), sampled=(9,), logprobs=(-0.4,))
    async with endpoint(completion("5"), second, third) as policy, gym(tmp_path, policy) as client:
        answer = (await client.post("/run", json=row(LONGER))).json()
    assert answer["left_out_tokens"] == 0
    log = rules.postprocess(answer)
    assert [message["token_ids"] for message in log if message["role"] == "assistant"] == [[7, 1], [8, 1], [9]]
    assert [message["token_ids"] for message in log if message["role"] == "user"] == [[1, 2, 3], [30, 31], [40]]


async def test_conversations_that_do_not_extend_one_another(tmp_path):
    turns = [completion("5"), completion("9", prompt=(4, 5), sampled=(8, 2, 1), logprobs=(-0.2, -0.3, -0.1))]
    turns.append(completion("1", prompt=(6,), sampled=(9,), logprobs=(-0.4,)))
    async with endpoint(*turns, *turns) as policy:
        async with gym(tmp_path / "fail", policy) as client:
            refused = await client.post("/run", json=row(LONGER))
        assert refused.status_code == 500
        assert "several_segments: longest" in refused.text
        async with gym(tmp_path / "longest", policy, several_segments="longest") as client:
            answer = (await client.post("/run", json=row(LONGER))).json()
    assert answer["left_out_tokens"] > 0
    assert rules.postprocess(answer)[1]["token_ids"] == [8, 2, 1]


async def test_an_unknown_reward_is_no_reward(tmp_path):
    """The endpoint breaks: the rollout is made again, then refused; never a reward of 0."""
    async with endpoint(*[completion("3") | {"choices": []}] * 40) as policy, gym(tmp_path, policy) as client:
        refused = await client.post("/run", json=row(WON))
    assert refused.status_code == 500
    assert "be trained on" in refused.text


MERGE = """
import json, sys
from omegaconf import OmegaConf
own, stock = (OmegaConf.load(path) for path in sys.argv[1:])
own.pop("defaults")
for key in list(own):
    if OmegaConf.is_dict(own[key]) and own[key].get("_override_", False):
        own[key].pop("_override_")
        stock.pop(key, None)
print(json.dumps(OmegaConf.to_container(OmegaConf.merge(stock, own), resolve=True)))
"""


@pytest.mark.parametrize("kind", ["dpo", "grpo"])
async def test_the_configs_are_read_the_same_by_omegaconf(tmp_path, kind):
    """Merged, overridden and resolved as NeMo RL's loader does it: numbers stay numbers, `_override_` replaces."""
    checkout = make_checkout(tmp_path / "rl")
    if kind == "dpo":
        config = settings(checkout, learning_rate=1e-6, validation_share=0.2, lora={"rank": 4})
        spec = await adapter(config, tmp_path / "run").prepare(collection(pairs(40)), None)
    else:
        spec = await made(groups(checkout), tmp_path / "run").prepare(handed_over(), None)
    path = tmp_path / "run" / "nemo_rl" / spec.payload["folder"] / "config.yaml"
    stock = checkout / "examples" / "configs" / ("dpo.yaml" if kind == "dpo" else "grpo_math_1B.yaml")
    done = subprocess.run(
        [PYTHON, "-c", MERGE, str(path), str(stock)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    theirs = json.loads(done.stdout)
    assert theirs == rules.load(path)[0]
    assert theirs["policy"]["optimizer"]["kwargs"]["lr"] == 1e-6
