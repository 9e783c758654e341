"""A GRPO or GDPO job of NeMo RL around our rollouts: data, driver config and the two servers that NeMo Gym runs for it.

NeMo RL owns the generation and calls an environment; an agent that calls its own model goes in through NeMo Gym. Gym runs an
agent server, which asks a resources server, which asks `nat-finetune serve-rollouts` for a rollout of an example against the
policy's endpoint, and gets its tokens and rewards.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from nat_finetune_plugins.nemo_rl.job_config import (
    CONFIG,
    TRAIN,
    Place,
    Tree,
    as_yaml,
    common,
    merged,
    overridden,
)
from nat_finetune_plugins.nemo_rl.settings import GroupsConfig, NemoRLTrainerAdapterConfig

from nat_finetune.errors import ConfigError
from nat_finetune.types import Example, HandOver, Target

SCRIPT = "examples/nemo_gym/run_grpo_nemo_gym.py"
STOCK = "examples/configs/grpo_math_1B.yaml"
AGENT, RESOURCES = "nat_finetune_agent", "nat_finetune"
GYM_CONFIG, INSTALL = "gym.yaml", "install_gym.sh"
MODEL_SERVER = "responses_api_models/vllm_model/configs/vllm_model_for_training.yaml"
"""Gym's own; its users must name it first."""
_HEAD = """Written by nat-finetune for one job of NeMo RL around its rollouts; see docs/backends.md.
Every key that is not here comes from the stock config that `defaults` names."""
_NOTES = {
    "use_leave_one_out_baseline": (
        "NeMo RL's default, true, divides a sample by the spread of the others. Of rewards 7 x 0.3 and 1 x 1.0 in float32 the\n"
        "odd one gets an advantage of +7428: the spread of equal numbers is rounding noise. The group's own has no such hole."
    ),
    "adv_estimator": "gdpo compares each reward inside its group by itself; weights stand in the order of the rewards' names.",
    "config_paths": "Gym's server of the policy first, then the workflow's.",
    "train_global_batch_size": "All rollouts of a step: one on-policy update.",
    "max_val_samples": "Gym wants null: it validates on nothing here; nat-finetune measures before and after.",
}
_HANDLING = {
    "env_name": "nemo_gym",
    "processor": "nemo_gym_data_processor",
    "prompt_file": None,
    "system_prompt_file": None,
}
_GYM_HEAD = """Written by nat-finetune: the two servers through which NeMo Gym gets rollouts of a workflow.
`policy_base_url` and `policy_model_name` are NeMo RL's."""
_INSTALL = """#!/bin/sh
# NeMo Gym looks for servers in its own folders: put the two there, then start NeMo RL. Usage: install_gym.sh GYM COMMAND...
set -e
gym=$1; shift
[ -d "$gym" ] || { echo "$gym: no such folder; algorithm.gym_folder must be NeMo Gym's repository" >&2; exit 66; }
cp -R "$(dirname "$0")/gym/." "$gym/"
exec "$@"
"""


def group_files(
    config: NemoRLTrainerAdapterConfig, algorithm: GroupsConfig, given: HandOver, target: Target, place: Place, *, seed: int
) -> dict[str, bytes]:
    """All files of the job, by name.

    Raises:
        ConfigError: GDPO with one reward, or a step of fewer rollouts than the model's copies take at once.
    """
    weights = reward_weights(target, algorithm)
    files = {
        CONFIG: driver_yaml(config, algorithm, given, weights, place, seed=seed),
        TRAIN: "".join(f"{json.dumps(row)}\n" for row in gym_rows(given.examples)),
        INSTALL: _INSTALL,
        GYM_CONFIG: gym_yaml(algorithm, weights),
    }
    for kind, name in (("responses_api_agents", AGENT), ("resources_servers", RESOURCES)):
        template = "gym_agent.py.tmpl" if name == AGENT else "gym_resources.py.tmpl"
        files[f"gym/{kind}/{name}/app.py"] = Path(__file__).with_name(template).read_text(encoding="utf-8")
        files[f"gym/{kind}/{name}/requirements.txt"] = "-e nemo-gym[dev] @ ../../\n"
        files[f"gym/{kind}/{name}/__init__.py"] = ""
    return {name: text.encode() for name, text in files.items()}


def reward_weights(target: Target, algorithm: GroupsConfig) -> dict[str, float]:
    """The trained rewards with their weights, in the order of their names: NeMo RL's."""
    weights = {term.name: term.weight for term in sorted(target.rewards, key=lambda term: term.name)}
    if algorithm.name == "gdpo" and len(weights) < 2:
        raise ConfigError(f"algorithm gdpo compares several rewards, and there is {len(weights)}: use name: grpo")
    return weights


def gym_rows(examples: Iterable[Example]) -> Iterable[Tree]:
    """One a task, as Gym's datasets have it; the example itself goes to the workflow."""
    for example in examples:
        text = example.input if isinstance(example.input, str) else json.dumps(example.input, ensure_ascii=False, default=str)
        yield {
            "responses_create_params": {"input": [{"role": "user", "content": text}]},
            "agent_ref": {"type": "responses_api_agents", "name": AGENT},
            "example": {
                "id": example.id,
                "input": example.input,
                "target": example.target,
                "metadata": dict(example.metadata),
            },
        }


def gym_yaml(algorithm: GroupsConfig, weights: Mapping[str, float]) -> str:
    """Gym's config of the two servers."""
    rollouts = algorithm.rollouts
    resources = {
        "entrypoint": "app.py",
        "domain": "agent",
        "rollouts_url": rollouts.url,
        "reward_weights": dict(weights),
        "timeout_seconds": rollouts.timeout_seconds,
        "retries": rollouts.retries,
        "several_segments": rollouts.several_segments,
    }
    agent = {
        "entrypoint": "app.py",
        "resources_server": {"type": "resources_servers", "name": RESOURCES},
        "policy_base_urls": "${policy_base_url}",
        "policy_model": "${policy_model_name}",
    }
    tree = {RESOURCES: {"resources_servers": {RESOURCES: resources}}, AGENT: {"responses_api_agents": {AGENT: agent}}}
    return as_yaml(tree, head=_GYM_HEAD)


def driver_yaml(
    config: NemoRLTrainerAdapterConfig,
    algorithm: GroupsConfig,
    given: HandOver,
    weights: Mapping[str, float],
    place: Place,
    *,
    seed: int,
) -> str:
    """The config of `run_grpo_nemo_gym.py`."""
    batch, step = given.examples_per_step * given.generations, config.cluster.replicas * config.micro_batch_size
    if batch % step:
        raise ConfigError(
            f"a step of {given.examples_per_step} examples with {given.generations} generations has {batch} rollouts, which is "
            f"no multiple of {step}: {config.cluster.replicas} copies of the model times micro_batch_size"
        )
    if given.examples_per_step > len(given.examples):
        raise ConfigError(
            f"a step takes {given.examples_per_step} examples, and there are {len(given.examples)}: NeMo RL trains "
            "whole steps only"
        )
    tree = common(config, place, steps=group_steps(config, given), batch=batch, metric=None)
    tree = merged(tree, _groups(config, algorithm, given, weights, place, seed=seed))
    tree = {"defaults": place.stock(STOCK), **overridden(tree, config.overrides)}
    return as_yaml(tree, head=_HEAD, notes=_NOTES)


def group_steps(config: NemoRLTrainerAdapterConfig, given: HandOver) -> int:
    """Updates of the whole job; the last examples of an epoch that fill no step are left out."""
    steps = given.epochs * (len(given.examples) // given.examples_per_step)
    return steps if config.max_steps is None else min(steps, config.max_steps)


def gym_folder(algorithm: GroupsConfig, place: Place) -> str:
    """NeMo Gym's repository."""
    return str(PurePosixPath(place.checkout) / algorithm.gym_folder)


def _groups(
    config: NemoRLTrainerAdapterConfig,
    algorithm: GroupsConfig,
    given: HandOver,
    weights: Mapping[str, float],
    place: Place,
    *,
    seed: int,
) -> Tree:
    return {
        "grpo": {
            "num_prompts_per_step": given.examples_per_step,
            "num_generations_per_prompt": given.generations,
            "max_rollout_turns": 1,
            "max_num_epochs": given.epochs,
            "max_num_steps": group_steps(config, given),
            "normalize_rewards": algorithm.normalize_rewards,
            "use_leave_one_out_baseline": False,
            "adv_estimator": _estimator(algorithm, weights),
            "use_dynamic_sampling": False,
            "overlong_filtering": False,
            "val_period": 0,
            "val_at_start": False,
            "max_val_samples": None,
            "val_batch_size": None,
            "seed": seed,
        },
        "loss_fn": _loss(algorithm),
        "policy": {"generation": _generation(config, algorithm)},
        "data": {
            "_override_": True,
            "max_input_seq_length": None,
            "shuffle": True,
            "num_workers": 0,
            "use_multiple_dataloader": False,
            "train": {"dataset_name": "NemoGymDataset", "data_path": place.path(TRAIN)},
            "validation": None,
            "default": _HANDLING,
        },
        "env": {
            "_override_": True,
            "should_use_nemo_gym": True,
            "should_log_nemo_gym_responses": True,
            "nemo_gym": {"config_paths": [MODEL_SERVER, place.path(GYM_CONFIG)]},
        },
    }


def _estimator(algorithm: GroupsConfig, weights: Mapping[str, float]) -> Tree:
    estimator: Tree = {
        "name": algorithm.name,
        "normalize_rewards": algorithm.normalize_rewards,
        "use_leave_one_out_baseline": False,
    }
    if algorithm.name == "gdpo":
        # Components carry their weights, and their signs; comparing them inside the group takes the size away again.
        estimator["reward_weights"] = [abs(weight) for weight in weights.values()]
    return estimator


def _loss(algorithm: GroupsConfig) -> Tree:
    return {
        "reference_policy_kl_penalty": algorithm.kl_beta,
        "ratio_clip_min": algorithm.clip_low,
        "ratio_clip_max": algorithm.clip_high,
        "token_level_loss": algorithm.reduction == "token_mean",
    }


def _generation(config: NemoRLTrainerAdapterConfig, algorithm: GroupsConfig) -> Tree:
    parser = {"enable_auto_tools": True, "tool_parser": algorithm.tool_parser} if algorithm.tool_parser else {}
    return {
        "backend": "vllm",
        "max_new_tokens": algorithm.max_new_tokens or config.max_length,
        "temperature": algorithm.temperature,
        "top_p": 1.0,
        "top_k": None,
        "vllm_cfg": {
            "async_engine": True,
            "expose_http_server": True,
            "tensor_parallel_size": config.cluster.tensor_parallel,
            "gpu_memory_utilization": algorithm.gpu_memory_utilization,
            "max_model_len": config.max_length,
            "http_server_serving_chat_kwargs": parser,
        },
    }
