"""What NeMo RL asks of a DPO config and its data, by its own source: refused here in the same places."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

Tree = dict[str, Any]
TASKS = {"HelpSteer3", "Tulu3Preference", "PreferenceDataset", "BinaryPreferenceDataset"}


class RefusedError(Exception):
    """NeMo RL would not run this."""


def load(path: Path) -> tuple[Tree, Tree]:
    """The config as NeMo RL merges and resolves it, and the stock one that it inherits."""
    own = yaml.safe_load(path.read_text(encoding="utf-8"))
    base_path = Path(own.pop("defaults"))
    stock = yaml.safe_load((base_path if base_path.is_absolute() else path.parent / base_path).read_text(encoding="utf-8"))
    base = dict(stock)
    for key, section in own.items():
        if isinstance(section, dict) and section.get("_override_"):  # top-level sections only
            base.pop(key, None)
            own = {**own, key: {name: value for name, value in section.items() if name != "_override_"}}
    merged = merge(base, own)
    return resolve(merged, merged), stock


def merge(base: Tree, more: Tree) -> Tree:
    result = dict(base)
    for key, value in more.items():
        both = isinstance(result.get(key), dict) and isinstance(value, dict)
        result[key] = merge(result[key], value) if both else value
    return result


def resolve(value: Any, root: Tree, parent: Tree | None = None) -> Any:
    if isinstance(value, dict):
        return {key: resolve(item, root, value) for key, item in value.items()}
    if isinstance(value, list):
        return [resolve(item, root, parent) for item in value]
    found = re.fullmatch(r"\$\{(\.?)([\w.]+)\}", value) if isinstance(value, str) else None
    if found is None:
        return value
    place: Any = parent if found[1] else root
    for key in found[2].split("."):
        place = place[key]
    return resolve(place, root, parent)


def check_keys(config: Tree, stock: Tree, path: str = "") -> None:
    """No key that the stock config does not have, and none missing; datasets, schedules and optional parts are free."""
    free = {"data.train", "data.validation", "policy.scheduler", "policy.optimizer", "policy.megatron_cfg", "logger"}
    if path in free:
        return
    for key in config.keys() - stock.keys():
        raise RefusedError(f"Key '{key}' is not in struct: full_key: {path}.{key}")
    for key in stock.keys() - config.keys():
        if not path.startswith("data"):
            raise RefusedError(f"missing key: {path}.{key}")
    for key, value in config.items():
        if isinstance(value, dict) and isinstance(stock[key], dict):
            check_keys(value, stock[key], f"{path}.{key}".lstrip("."))


def check(config: Tree) -> None:
    """The asserts of `run_dpo.py`, `dpo.setup` and the checkpoint manager."""
    policy, dpo, saving = config["policy"], config["dpo"], config["checkpointing"]
    for kind in ("dynamic_batching", "sequence_packing"):
        if policy[kind]["enabled"]:
            raise RefusedError(f"{kind} is currently not supported with DPO")
    metric = saving["metric_name"]
    if metric is not None and not metric.startswith(("val:", "train:")):
        raise RefusedError("metric_name must start with 'val:' or 'train:'")
    if config["data"]["validation"] is None and (dpo["val_period"] > 0 or dpo["val_at_start"] or dpo["val_at_end"]):
        raise RefusedError("validation is asked for, and there is no validation dataset")
    dtensor, megatron = policy["dtensor_cfg"], policy["megatron_cfg"]
    if dtensor["enabled"] == megatron["enabled"]:
        raise RefusedError("one of dtensor_cfg and megatron_cfg must be enabled")
    parallel = dtensor["tensor_parallel_size"] * dtensor["context_parallel_size"]
    if megatron["enabled"]:
        parallel = megatron["tensor_model_parallel_size"] * megatron["context_parallel_size"]
    copies = config["cluster"]["gpus_per_node"] * config["cluster"]["num_nodes"] // parallel
    if policy["train_global_batch_size"] % (copies * policy["train_micro_batch_size"]):
        raise RefusedError("train_global_batch_size must be a multiple of data parallel size times train_micro_batch_size")
    if dpo["val_global_batch_size"] % (copies * dpo["val_micro_batch_size"]):
        raise RefusedError("val_global_batch_size must be a multiple of data parallel size times val_micro_batch_size")
    lora = policy["dtensor_cfg"]["lora_cfg"]
    if lora["enabled"] and lora["use_triton"] and policy["dtensor_cfg"]["tensor_parallel_size"] > 1:
        raise RefusedError("LoRA's triton kernels need tensor_parallel_size 1")
    if not 0 <= dpo["seed"] < 2**32:
        raise RefusedError("Seed must be between 0 and 2**32 - 1")
    if policy["tokenizer"]["name"] != policy["model_name"]:
        raise RefusedError("the tokenizer of another model")
    optimizer = megatron["optimizer"] if megatron["enabled"] else policy["optimizer"]["kwargs"]
    for key in ("lr", "weight_decay"):
        if not isinstance(optimizer[key], float):
            raise RefusedError(f"{key} must be a float: {optimizer[key]!r}")


def rows(dataset: Tree) -> list[Tree]:
    """A local file of `PreferenceDataset`, as HF datasets loads it: one schema, one split, no column of the class's own."""
    if dataset["dataset_name"] not in TASKS:
        raise RefusedError(f"Unsupported dataset {dataset['dataset_name']}")
    if dataset["dataset_name"] != "PreferenceDataset" or dataset.get("split", "train") != "train":
        raise RefusedError("a local file has one split, 'train'")
    found = [json.loads(line) for line in Path(dataset["data_path"]).read_text(encoding="utf-8").splitlines()]
    if not found:
        raise RefusedError("the dataset is empty")
    if len({schema(row) for row in found}) > 1:
        raise RefusedError("rows of different schemas")
    if any("task_name" in row for row in found):
        raise RefusedError("add_column: task_name is there already")
    for row in found:
        preprocess(row)
    return found


def schema(value: Any) -> str:
    """Types and keys of a row; lists by their members."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{schema(item)}" for key, item in sorted(value.items())) + "}"
    if isinstance(value, list):
        return "[" + "|".join(sorted({schema(item) for item in value})) + "]"
    return type(value).__name__


def preprocess(row: Tree) -> None:
    """`preference_preprocessor`."""
    if len(row["completions"]) != 2:
        raise RefusedError("RM/DPO training supports only two completions")
    one, other = row["completions"]
    if one["rank"] == other["rank"]:
        raise RefusedError("Ties are not supported yet")
    for message in [*row["context"], *one["completion"], *other["completion"]]:
        if set(message) != {"role", "content"} or not isinstance(message["content"], str):
            raise RefusedError(f"a message that the chat template does not show whole: {sorted(message)}")
    for side in (one, other):
        if len(side["completion"]) != 1 or side["completion"][0]["role"] != "assistant":
            raise RefusedError("only the last message of a completion is trained: expected one of the assistant")


# ----------------------------------------------------------------------------------------------------- GRPO through NeMo Gym


def check_grpo(config: Tree) -> None:
    """The asserts of `run_grpo_nemo_gym.py`, `should_use_nemo_gym` and the advantage estimator."""
    grpo, policy, generation = config["grpo"], config["policy"], config["policy"]["generation"]
    if not config["env"].get("should_use_nemo_gym"):
        raise RefusedError("env.should_use_nemo_gym is not set")
    if not (generation["vllm_cfg"]["async_engine"] and generation["vllm_cfg"]["expose_http_server"]):
        raise RefusedError("NeMo Gym needs async_engine and expose_http_server")
    if generation["stop_strings"] or generation["stop_token_ids"]:
        raise RefusedError("stop strings are not supported with NeMo Gym")
    if grpo["max_val_samples"] is not None:
        raise RefusedError("A non-null `grpo.max_val_samples` parameter is not supported")
    if "for_training" not in config["env"]["nemo_gym"]["config_paths"][0]:
        raise RefusedError("the policy's server must be the one for training, and first")
    batch = grpo["num_prompts_per_step"] * grpo["num_generations_per_prompt"]
    if policy["train_global_batch_size"] != batch:
        raise RefusedError("train_global_batch_size is not one on-policy step")
    copies = config["cluster"]["gpus_per_node"] * config["cluster"]["num_nodes"]
    copies //= policy["dtensor_cfg"]["tensor_parallel_size"] * policy["dtensor_cfg"]["context_parallel_size"]
    if batch % (copies * policy["train_micro_batch_size"]):
        raise RefusedError("rollouts of a step don't divide by the copies of the model")
    estimator = grpo["adv_estimator"]
    if estimator["name"] not in ("grpo", "gdpo") or estimator["use_leave_one_out_baseline"]:
        raise RefusedError(f"estimator {estimator}")


def gym_rows(config: Tree) -> list[Tree]:
    """Lines of `NemoGymDataset`; each says which agent server it goes to."""
    found = [json.loads(line) for line in Path(config["data"]["train"]["data_path"]).read_text(encoding="utf-8").splitlines()]
    for row in found:
        if not row["responses_create_params"]["input"] or row["agent_ref"]["type"] != "responses_api_agents":
            raise RefusedError("a row that Gym can't route")
    return found


def gym_servers(config: Tree, gym: Path) -> Tree:
    """The servers of the last config file, each with its folder in Gym."""
    servers: Tree = yaml.safe_load(Path(config["env"]["nemo_gym"]["config_paths"][-1]).read_text(encoding="utf-8"))
    for kinds in servers.values():
        for kind, named in kinds.items():
            for name, server in named.items():
                if (
                    not (gym / kind / name / server["entrypoint"]).is_file()
                    or not (gym / kind / name / "requirements.txt").is_file()
                ):
                    raise RefusedError(f"Gym has no {kind}/{name}")
    return servers


def postprocess(result: Tree) -> list[Tree]:
    """What NeMo RL makes of a rollout from Gym: a growing conversation, trained where the policy sampled; one reward."""
    log: list[Tree] = []
    seen: list[int] = []
    for item in result["response"]["output"]:
        if not item.get("generation_token_ids"):
            continue
        if seen != item["prompt_token_ids"][: len(seen)]:
            raise RefusedError("Non-contiguous messages found!")
        if len(item["generation_token_ids"]) != len(item["generation_log_probs"]):
            raise RefusedError("logprobs of other tokens")
        new = item["prompt_token_ids"][len(seen) :]
        log.append({"role": "user", "token_ids": new})
        log.append({"role": "assistant", "token_ids": item["generation_token_ids"], "logprobs": item["generation_log_probs"]})
        seen += new + item["generation_token_ids"]
    if not log:
        raise RefusedError("NeMo Gym returned a result with no generation data")
    if abs(result["reward"] - sum(result["reward_components"].values())) > 1e-6:
        raise RefusedError("A multi-reward verifier must set reward = sum(reward_components)")
    return log
