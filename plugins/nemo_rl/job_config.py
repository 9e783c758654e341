"""What NeMo RL's YAML files have in common: model, optimiser, checkpoints, cluster; overrides; the text with its comments.

A generated file inherits a stock one of the checkout (`defaults:`) and replaces whole sections by `_override_: true`, so that
every key that NeMo RL's strict config asks for is there, in the version that runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import yaml
from nat_finetune_plugins.nemo_rl.settings import NemoRLTrainerAdapterConfig

Tree = dict[str, Any]
TRAIN, VALIDATION = "train.jsonl", "validation.jsonl"
CONFIG = "config.yaml"
CHECKPOINTS, LOGS = "checkpoints", "logs"
_ALWAYS = 10_000_000_000
"""Optimiser steps: for ever, as in NeMo RL's own schedules."""


@dataclass(frozen=True, slots=True)
class Place:
    """The job's folder as the job sees it."""

    folder: str
    checkout: str

    def path(self, name: str) -> str:
        """A file or folder in it."""
        return str(PurePosixPath(self.folder) / name)

    def stock(self, name: str) -> str:
        """A file of NeMo RL."""
        return str(PurePosixPath(self.checkout) / name)


def common(config: NemoRLTrainerAdapterConfig, place: Place, *, steps: int | None, batch: int, metric: str | None) -> Tree:
    """All sections that do not depend on the algorithm.

    Args:
        config: the settings.
        place: where the job finds its files.
        steps: optimiser steps of the whole job; None: not known.
        batch: pairs or rollouts of one of them.
        metric: by which checkpoints are kept, such as `val:accuracy`; None: the latest are.
    """
    period = config.save_every or steps or 10
    return {
        "policy": {
            "model_name": config.model,
            "tokenizer": {"name": config.model},
            "train_global_batch_size": batch,
            "train_micro_batch_size": config.micro_batch_size,
            "max_total_sequence_length": config.max_length,
            "precision": config.precision,
            "max_grad_norm": config.max_grad_norm,
            "make_sequence_length_divisible_by": _divisor(config),
            **(_megatron(config) if config.backend == "megatron" else _dtensor(config)),
        },
        "checkpointing": {
            "enabled": True,
            "checkpoint_dir": place.path(CHECKPOINTS),
            "metric_name": metric,
            "higher_is_better": metric is not None and not metric.endswith("_loss"),
            "keep_top_k": config.keep_checkpoints,
            "save_period": period,
        },
        "logger": {"log_dir": place.path(LOGS)},
        "cluster": {"gpus_per_node": config.cluster.gpus_per_node, "num_nodes": config.cluster.nodes},
    }


def _divisor(config: NemoRLTrainerAdapterConfig) -> int:
    """Of sequence lengths: what tensor and context parallelism split must come out even."""
    cluster = config.cluster
    return cluster.tensor_parallel * (2 * cluster.context_parallel if cluster.context_parallel > 1 else 1)


def _dtensor(config: NemoRLTrainerAdapterConfig) -> Tree:
    lora = config.lora
    spread: Tree = {
        "enabled": True,
        "tensor_parallel_size": config.cluster.tensor_parallel,
        "context_parallel_size": config.cluster.context_parallel,
    }
    if lora is not None:
        spread["_v2"] = True  # the first version has no LoRA
        spread["lora_cfg"] = {
            "enabled": True,
            "dim": lora.rank,
            "alpha": lora.alpha,
            "dropout": lora.dropout,
            "match_all_linear": True,
            "use_triton": config.cluster.tensor_parallel == 1,  # the fast kernels can do no more
        }
    kwargs = {"lr": config.learning_rate, "weight_decay": config.weight_decay, "betas": list(config.betas)}
    return {
        "dtensor_cfg": spread,
        "megatron_cfg": {"enabled": False},
        "optimizer": {"kwargs": kwargs},
        "scheduler": _schedule(config.warmup_steps),
    }


def _megatron(config: NemoRLTrainerAdapterConfig) -> Tree:
    lora = config.lora
    peft: Tree = {"enabled": False}
    if lora is not None:
        peft = {"enabled": True, "dim": lora.rank, "alpha": lora.alpha, "dropout": lora.dropout}
    return {
        "dtensor_cfg": {"enabled": False},
        "megatron_cfg": {
            "enabled": True,
            "tensor_model_parallel_size": config.cluster.tensor_parallel,
            "context_parallel_size": config.cluster.context_parallel,
            "pipeline_model_parallel_size": 1,
            "sequence_parallel": config.cluster.tensor_parallel > 1,
            "optimizer": {
                "lr": config.learning_rate,
                "min_lr": config.learning_rate,
                "weight_decay": config.weight_decay,
                "adam_beta1": config.betas[0],
                "adam_beta2": config.betas[1],
            },
            "scheduler": {
                "lr_decay_style": "constant",
                "lr_warmup_iters": config.warmup_steps,
                "lr_warmup_init": config.learning_rate / (config.warmup_steps + 1),
            },
            "peft": peft,
        },
        "optimizer": None,
    }


def _schedule(warmup: int) -> list[Tree]:
    constant = {"name": "torch.optim.lr_scheduler.ConstantLR", "kwargs": {"factor": 1.0, "total_iters": _ALWAYS}}
    if not warmup:
        return [constant, {"milestones": []}]
    rising = {"start_factor": 1 / (warmup + 1), "end_factor": 1.0, "total_iters": warmup}
    return [{"name": "torch.optim.lr_scheduler.LinearLR", "kwargs": rising}, constant, {"milestones": [warmup]}]


def merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> Tree:
    """Both trees as one; where both have a value, that of `more`."""
    result = dict(base)
    for key, value in more.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def overridden(tree: Tree, overrides: Mapping[str, Any]) -> Tree:
    """The tree with values at dotted paths."""
    for path, value in overrides.items():
        for key in reversed(path.split(".")):
            value = {key: value}
        tree = merged(tree, value)
    return tree


def as_yaml(tree: Mapping[str, Any], *, head: str, notes: Mapping[str, str] | None = None) -> str:
    """The tree as a file: `head` above it, and a comment above the first line of each key that `notes` explains."""
    left = dict(notes or {})
    lines = [f"# {line}".rstrip() for line in head.splitlines()]
    for line in yaml.safe_dump(dict(tree), sort_keys=False, allow_unicode=True, width=120).splitlines():
        found = re.match(r"( *)([A-Za-z_]\w*):", line)
        if found is not None and found[2] in left:
            lines += [f"{found[1]}# {said}" for said in left.pop(found[2]).splitlines()]
        lines.append(line)
    return "\n".join(lines) + "\n"
