"""GRPO and GDPO: the files for NeMo RL and NeMo Gym, and a whole job against the fake `uv`."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from nat_finetune_plugins.nemo_rl.adapter import NemoRLTrainerAdapter
from nat_finetune_plugins.nemo_rl.grpo_job import gym_rows
from nat_finetune_plugins.nemo_rl.launchers import check_rollouts, make_launcher
from pydantic import ValidationError

from nat_finetune.config.load import load_config
from nat_finetune.errors import BackendError, ConfigError
from nat_finetune.registry import Registry
from nat_finetune.testing.serving import serving
from nat_finetune.types import Collection, Example, HandOver, JobState, RewardTerm, Target
from tests.plugins.nemo_rl.made import collection, pairs, settings
from tests.plugins.nemo_rl.stock import make_checkout
from tests.source_tree import ROOT

TWO = Target(("choose_move",), "policy", (RewardTerm("outcome", 1.0), RewardTerm("length", -0.25)), rewards_apart=True)
ONE = Target(("choose_move",), "policy", (RewardTerm("outcome"),))
EXAMPLES = tuple(Example(f"e{n}", f"board {n}", target={"best": n}, metadata={"level": n}) for n in range(10))


def groups(checkout, /, name="grpo", **more):
    algorithm = {"name": name, "rollouts": {"url": "http://127.0.0.1:9"}, **more.pop("algorithm", {})}
    return settings(checkout, algorithm=algorithm, **more)


def handed_over(**more):
    given = HandOver(EXAMPLES, epochs=2, examples_per_step=4, generations=8)
    return Collection((), "run-1", 0, "policy", handed_over=replace(given, **more))


def made(config, folder, target=ONE):
    return NemoRLTrainerAdapter(config, make_launcher(config, "cluster"), target=target, name="cluster", seed=7, folder=folder)


@pytest.fixture
def checkout(tmp_path):
    return make_checkout(tmp_path / "rl")


async def written(config, folder, target=ONE, **more):
    spec = await made(config, folder, target).prepare(handed_over(**more), None)
    place = folder / "nemo_rl" / spec.payload["folder"]
    return spec, place, yaml.safe_load((place / "config.yaml").read_text())


async def test_the_driver_config(checkout, tmp_path):
    config = groups(
        checkout,
        algorithm={"kl_beta": 0.01, "clip_high": 0.28, "temperature": 0.9, "tool_parser": "hermes"},
        learning_rate=2e-6,
    )
    spec, place, tree = await written(config, tmp_path)
    assert tree["defaults"] == f"{checkout}/examples/configs/grpo_math_1B.yaml"
    grpo = tree["grpo"]
    assert (grpo["num_prompts_per_step"], grpo["num_generations_per_prompt"], grpo["max_num_epochs"]) == (4, 8, 2)
    assert grpo["max_num_steps"] == spec.payload["steps"] == 4
    assert grpo["use_leave_one_out_baseline"] is grpo["adv_estimator"]["use_leave_one_out_baseline"] is False
    assert grpo["adv_estimator"] == {"name": "grpo", "normalize_rewards": True, "use_leave_one_out_baseline": False}
    assert tree["policy"]["train_global_batch_size"] == 32
    assert tree["policy"]["optimizer"]["kwargs"]["lr"] == 2e-6
    generation = tree["policy"]["generation"]
    assert (generation["temperature"], generation["vllm_cfg"]["expose_http_server"]) == (0.9, True)
    assert generation["vllm_cfg"]["http_server_serving_chat_kwargs"] == {"enable_auto_tools": True, "tool_parser": "hermes"}
    assert tree["loss_fn"]["reference_policy_kl_penalty"] == 0.01
    assert tree["loss_fn"]["ratio_clip_max"] == 0.28
    assert tree["env"]["nemo_gym"]["config_paths"][1] == f"{place}/gym.yaml"
    assert spec.payload["notes"] == ["2 examples of each epoch fill no step of 4 and are not trained in it"]


async def test_the_reason_stands_above_the_baseline(checkout, tmp_path):
    _, place, _ = await written(groups(checkout), tmp_path)
    lines = (place / "config.yaml").read_text().splitlines()
    at = next(place for place, line in enumerate(lines) if "use_leave_one_out_baseline:" in line)
    assert lines[at] == "  use_leave_one_out_baseline: false"
    assert "+7428" in lines[at - 1]
    assert lines[at - 2].startswith("  # NeMo RL's default, true, divides")


async def test_gdpo_has_a_weight_for_each_reward_by_name(checkout, tmp_path):
    _, place, tree = await written(groups(checkout, "gdpo"), tmp_path, TWO)
    assert tree["grpo"]["adv_estimator"]["name"] == "gdpo"
    # By name: length, outcome. The component carries the sign, so the weight is positive.
    assert tree["grpo"]["adv_estimator"]["reward_weights"] == [0.25, 1.0]
    gym = yaml.safe_load((place / "gym.yaml").read_text())
    assert gym["nat_finetune"]["resources_servers"]["nat_finetune"]["reward_weights"] == {"length": -0.25, "outcome": 1.0}


async def test_gdpo_of_one_reward_is_refused(checkout, tmp_path):
    with pytest.raises(ConfigError, match="there is 1: use name: grpo"):
        await written(groups(checkout, "gdpo"), tmp_path, ONE)


def test_rows_of_gym():
    row = json.loads(json.dumps(list(gym_rows(EXAMPLES))))[3]
    assert row == {
        "responses_create_params": {"input": [{"role": "user", "content": "board 3"}]},
        "agent_ref": {"type": "responses_api_agents", "name": "nat_finetune_agent"},
        "example": {"id": "e3", "input": "board 3", "target": {"best": 3}, "metadata": {"level": 3}},
    }


@pytest.mark.parametrize(
    ("given", "config", "said"),
    [
        (
            {"generations": 3, "examples_per_step": 1},
            {"cluster": {"gpus_per_node": 2}},
            "3 rollouts, .* no multiple of 2",
        ),
        ({"examples_per_step": 11}, {}, "takes 11 examples, and there are 10"),
    ],
)
async def test_what_would_not_run_is_refused(checkout, tmp_path, given, config, said):
    with pytest.raises(ConfigError, match=said):
        await written(groups(checkout, **config), tmp_path, **given)


@pytest.mark.parametrize("key", ["validation_share", "pair_weights", "on_too_long", "epochs"])
def test_keys_of_pairs_are_refused(checkout, key):
    value = {"validation_share": 0.1, "pair_weights": "refuse", "on_too_long": "fail", "epochs": 2}[key]
    with pytest.raises(ValidationError, match=f"{key} would be ignored with algorithm grpo"):
        groups(checkout, **{key: value})


async def test_rollouts_of_the_run_are_not_taken(checkout, tmp_path):
    with pytest.raises(ConfigError, match="use `_type: backend_trainer`"):
        await made(groups(checkout), tmp_path).prepare(collection(pairs(3)), None)


async def test_a_whole_job(checkout, tmp_path):
    config = groups(checkout, "gdpo", save_every=2)
    adapter = made(config, tmp_path / "run", TWO)
    spec = await adapter.prepare(handed_over(), None)
    told = await adapter.wait(await adapter.submit(spec))
    assert told.state is JobState.COMPLETED, told
    assert told.metrics == {"loss": 0.04, "avg_reward": 0.4}
    result = await adapter.result(await adapter.find(spec))
    assert (Path(result.policy.location).name, result.optimiser_steps) == ("step_4", 4)
    assert [step["avg_reward"] for step in result.curve] == [0.1, 0.2, 0.3, 0.4]
    gym = checkout / "3rdparty" / "Gym-workspace" / "Gym"
    assert (gym / "responses_api_agents" / "nat_finetune_agent" / "app.py").is_file()


async def test_no_gym_is_said(checkout, tmp_path):
    config = groups(checkout, algorithm={"gym_folder": "/no/gym"})
    adapter = made(config, tmp_path / "run")
    told = await adapter.wait(await adapter.submit(await adapter.prepare(handed_over(), None)))
    assert told.state is JobState.FAILED
    assert "algorithm.gym_folder must be NeMo Gym's repository" in told.message


async def test_health_asks_for_rollouts(checkout, monkeypatch):
    monkeypatch.setenv("NAT_FINETUNE_ROLLOUT_TOKEN", "a-rollout-token")

    async def rollouts(scope, receive, send):
        right = (b"authorization", b"Bearer a-rollout-token") in scope["headers"]
        await send(
            {
                "type": "http.response.start",
                "status": 200 if right else 401,
                "headers": [(b"content-type", b"application/json")],
            }
        )
        await send({"type": "http.response.body", "body": b'{"status": "ok"}'})

    with serving(rollouts) as running:
        await check_rollouts(groups(checkout, algorithm={"rollouts": {"url": running.url}}).algorithm.rollouts)
    with pytest.raises(BackendError, match="start `nat-finetune serve-rollouts`"):
        await check_rollouts(groups(checkout).algorithm.rollouts)


def test_one_temperature_for_calls_and_training():
    shipped = ROOT / "configs" / "gdpo_tool_calling_nemo_rl.yml"
    with pytest.raises(ConfigError, match=r"at temperature 1, .*samples and trains at 0.9 \(set both to the same\)"):
        load_config(shipped, ["trainer_adapters.cluster.algorithm.temperature=0.9"], registry=Registry.installed())
