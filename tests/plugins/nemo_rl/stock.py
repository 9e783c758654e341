"""A checkout of NeMo RL as far as a job sees it: the stock config with its keys, scripts of the right names, a `uv`.

The keys and defaults are those of `dpo.yaml` and `grpo_math_1B.yaml`, as far as they matter; the scripts are empty: `uv` plays
them.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import yaml

FAKE_UV = Path(__file__).with_name("fake_uv.py")

DTENSOR = {
    "_v2": True,
    "enabled": True,
    "cpu_offload": False,
    "sequence_parallel": False,
    "activation_checkpointing": False,
    "tensor_parallel_size": 1,
    "context_parallel_size": 1,
    "custom_parallel_plan": None,
    "lora_cfg": {
        "enabled": False,
        "target_modules": [],
        "exclude_modules": [],
        "match_all_linear": True,
        "dim": 8,
        "alpha": 32,
        "dropout": 0.0,
        "dropout_position": "post",
        "lora_A_init": "xavier",
        "use_triton": True,
    },
}
ADAMW = {"lr": 5e-6, "weight_decay": 0.1, "betas": [0.9, 0.98], "eps": 1e-5, "foreach": False, "fused": False}
POLICY = {
    "model_name": "meta-llama/Llama-3.2-1B-Instruct",
    "tokenizer": {"name": "meta-llama/Llama-3.2-1B-Instruct", "chat_template_kwargs": None},
    "train_global_batch_size": 128,
    "train_micro_batch_size": 2,
    "max_total_sequence_length": 1024,
    "precision": "bfloat16",
    "offload_optimizer_for_logprob": False,
    "dtensor_cfg": DTENSOR,
    "dynamic_batching": {"enabled": False},
    "sequence_packing": {"enabled": False},
    "make_sequence_length_divisible_by": "${policy.dtensor_cfg.tensor_parallel_size}",
    "max_grad_norm": 1.0,
    "optimizer": {"name": "torch.optim.AdamW", "kwargs": ADAMW},
    "scheduler": [
        {"name": "torch.optim.lr_scheduler.LinearLR", "kwargs": {"start_factor": 0.1, "end_factor": 1.0, "total_iters": 20}},
        {"milestones": [20]},
    ],
    "megatron_cfg": {"enabled": False, "tensor_model_parallel_size": 2, "optimizer": {"lr": 5e-6, "adam_eps": 1e-8}},
}
LOGGER = {
    "log_dir": "logs",
    "wandb_enabled": False,
    "tensorboard_enabled": False,
    "mlflow_enabled": False,
    "swanlab_enabled": False,
    "monitor_gpus": True,
    "num_val_samples_to_print": 0,
    "wandb": {"project": "p", "name": "n"},
}
DPO = {
    "dpo": {
        "max_num_epochs": 1,
        "max_num_steps": 150,
        "val_period": 25,
        "val_batches": 8,
        "val_global_batch_size": 8,
        "val_micro_batch_size": 1,
        "val_at_start": True,
        "val_at_end": False,
        "seed": 42,
        "reference_policy_kl_penalty": 0.05,
        "preference_average_log_probs": False,
        "sft_average_log_probs": "${.preference_average_log_probs}",
        "preference_loss_weight": 1,
        "sft_loss_weight": 0,
    },
    "checkpointing": {
        "enabled": True,
        "checkpoint_dir": "results/dpo",
        "metric_name": "val:validation-default_loss",
        "higher_is_better": False,
        "keep_top_k": 3,
        "save_period": 50,
        "checkpoint_must_save_by": None,
    },
    "policy": POLICY,
    "data": {
        "max_input_seq_length": "${policy.max_total_sequence_length}",
        "shuffle": True,
        "num_workers": 1,
        "train": {"dataset_name": "HelpSteer3", "split": "train"},
        "validation": {"dataset_name": "HelpSteer3", "split": "validation"},
    },
    "logger": LOGGER,
    "cluster": {"gpus_per_node": 1, "num_nodes": 1},
}


GRPO = {
    "grpo": {
        "num_prompts_per_step": 32,
        "num_generations_per_prompt": 16,
        "max_rollout_turns": 1,
        "max_num_epochs": 1,
        "max_num_steps": 1000000,
        "normalize_rewards": True,
        "use_leave_one_out_baseline": True,
        "val_period": 10,
        "val_at_start": False,
        "overlong_filtering": False,
        "max_val_samples": 256,
        "val_batch_size": 256,
        "seed": 42,
        "use_dynamic_sampling": False,
        "dynamic_sampling_max_gen_batches": 10,
        "batch_multiplier": 1,
        "reward_shaping": {"enabled": False},
        "reward_scaling": {"enabled": False},
        "adv_estimator": {
            "name": "grpo",
            "normalize_rewards": True,
            "use_leave_one_out_baseline": True,
            "reward_weights": None,
        },
    },
    "loss_fn": {
        "reference_policy_kl_penalty": 0.01,
        "reference_policy_kl_type": "k3",
        "kl_input_clamp_value": 20.0,
        "kl_output_clamp_value": 10.0,
        "ratio_clip_min": 0.2,
        "ratio_clip_max": 0.2,
        "ratio_clip_c": None,
        "token_level_loss": True,
    },
    "checkpointing": DPO["checkpointing"],
    "policy": {
        **POLICY,
        "logprob_batch_size": "${policy.train_micro_batch_size}",
        "generation": {
            "backend": "vllm",
            "max_new_tokens": "${policy.max_total_sequence_length}",
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": None,
            "stop_token_ids": None,
            "stop_strings": None,
            "vllm_cfg": {"async_engine": False, "tensor_parallel_size": 1, "gpu_memory_utilization": 0.6},
            "colocated": {"enabled": True},
        },
    },
    "data": {"max_input_seq_length": None, "shuffle": True, "num_workers": 1, "train": {}, "validation": None, "default": {}},
    "env": {"math": {"num_workers": 8}},
    "logger": LOGGER,
    "cluster": {"gpus_per_node": 1, "num_nodes": 1},
}


def make_checkout(folder: Path, **behaviour: Any) -> Path:
    """The folder; `behaviour` is that of `fake_uv.py`."""
    configs = folder / "examples" / "configs"
    configs.mkdir(parents=True)
    (configs / "dpo.yaml").write_text(yaml.safe_dump(DPO, sort_keys=False))
    (configs / "grpo_math_1B.yaml").write_text(yaml.safe_dump(GRPO, sort_keys=False))
    (folder / "examples" / "run_dpo.py").touch()
    (folder / "examples" / "nemo_gym").mkdir()
    (folder / "examples" / "nemo_gym" / "run_grpo_nemo_gym.py").touch()
    (folder / "3rdparty" / "Gym-workspace" / "Gym").mkdir(parents=True)
    uv = folder / "uv"
    uv.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE_UV}" "$@"\n')
    uv.chmod(uv.stat().st_mode | stat.S_IXUSR)
    behave(folder, **behaviour)
    return folder


def behave(folder: Path, **behaviour: Any) -> None:
    """What the jobs that are started from now on do."""
    new = folder / f"behaviour.{os.getpid()}"
    new.write_text(json.dumps(behaviour))
    new.replace(folder / "behaviour.json")


def starts(folder: Path) -> list[str]:
    """The config file of each job that was started."""
    log = folder / "starts.log"
    return log.read_text().splitlines() if log.exists() else []
