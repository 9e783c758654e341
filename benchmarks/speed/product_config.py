"""The configs of the product's side, as a user would write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from protocol import Job
from workload import AGENT_GENERATIONS, AGENT_TOKENS, BATCH, GRPO_GENERATIONS, GRPO_TOKENS

LEARNING_RATES = {"dpo": 1e-4, "grpo": 1e-5, "agent": 1e-5}


def write_config(job: Job, folder: Path) -> Path:
    """The config of a job with its data beside it; returns its path."""
    data = folder / "data.jsonl"
    parts = _preferences(job, data) if job.work == "dpo" else _rollouts(job, data)
    algorithm = {"name": "dpo", "beta": 0.1} if job.work == "dpo" else {"name": "grpo"}
    adapter = {"_type": "local_trainer_adapter", "algorithm": algorithm, "learning_rate": LEARNING_RATES.get(job.work, 1e-5)}
    if job.work == "dpo":
        adapter["batch_size"] = BATCH
    if job.mode == "lora":
        adapter["lora"] = {"rank": 16, "alpha": 32}
    policy = {"_type": "local", "model": job.model, "dtype": job.dtype, "device": job.device}
    config = {
        "config_version": 1,
        "llms": {"policy": {**policy, "temperature": 1.0, "max_tokens": _max_tokens(job)}},
        **parts["sections"],
        "trainer_adapters": {"here": adapter},
        "trainers": {"steps": {"_type": parts["trainer"]}},
        "finetuning": {
            "enabled": True,
            "trajectory_builder": "items",
            "trainer_adapter": "here",
            "trainer": "steps",
            "seed": 0,
            **parts["finetuning"],
        },
    }
    path = folder / f"{job.work}.yml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


def _max_tokens(job: Job) -> int:
    return {"grpo": GRPO_TOKENS, "agent": AGENT_TOKENS}.get(job.work, 64)


def _lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _preferences(job: Job, data: Path) -> dict[str, Any]:
    _lines(data, [{name: row[name] for name in ("prompt", "chosen", "rejected")} for row in job.data()])
    builder = {"_type": "preference_dataset_builder", "dataset": {"_type": "jsonl", "file_path": str(data)}, "format": "trl"}
    return {"sections": {"trajectory_builders": {"items": builder}}, "trainer": "preference_trainer", "finetuning": {}}


def _rollouts(job: Job, data: Path) -> dict[str, Any]:
    rows = job.data()
    _lines(data, [{"id": number, "question": _question(job, row)} for number, row in enumerate(rows)])
    workflow = {"_type": "single_turn", "llm": "policy"} if job.work == "grpo" else {"_type": "conversation", "llm": "policy"}
    generations = {"grpo": GRPO_GENERATIONS, "agent": AGENT_GENERATIONS}.get(job.work, 2)
    sections = {
        "workflow": workflow,
        "eval": {
            "general": {"max_concurrency": 64, "dataset": {"_type": "jsonl", "file_path": str(data)}},
            "evaluators": {"cheap": {"_type": "python", "function": "conversation:score"}},
        },
        "trajectory_builders": {"items": {"_type": "grpo_traj_builder", "num_generations": generations}},
    }
    finetuning = {
        "reward_function": {"name": "cheap"},
        "target_functions": ["<workflow>"],
        "target_model": "policy",
        "examples_per_step": len(rows),
    }
    return {"sections": sections, "trainer": "on_policy_trainer", "finetuning": finetuning}


def _question(job: Job, row: dict[str, Any]) -> Any:
    """A text, or what a conversation needs."""
    text = row["prompt"][-1]["content"]
    if job.work == "grpo":
        return text
    return {"first": text, "observations": row["observations"], "tokens": row.get("tokens")}
