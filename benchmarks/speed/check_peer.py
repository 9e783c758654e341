"""Equal losses on equal batches, the peer's half: `python check_peer.py JOB.json FOLDER`, by a Python that has TRL."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from datasets import Dataset
from peer import common
from peft import PeftModel
from protocol import Job
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer
from trl.trainer.dpo_trainer import DataCollatorForPreference
from workload import GRPO_GENERATIONS


def preferences(job: Job, folder: Path, rows: list[dict[str, Any]]) -> dict[str, float]:
    """The loss of the exported weights on these rows."""
    policy, reference = (
        AutoModelForCausalLM.from_pretrained(place, dtype="float32") for place in (folder / "policy", job.model)
    )
    tokenizer = AutoTokenizer.from_pretrained(job.model)
    trainer = DPOTrainer(
        model=policy,
        ref_model=reference,
        args=DPOConfig(beta=0.1, max_length=None, disable_dropout=True, **common(job)),
        train_dataset=Dataset.from_list([{"prompt": "a", "chosen": "b", "rejected": "c"}]),  # the rows don't go through it
        processing_class=tokenizer,
    )
    trainer.model.eval()
    batch = DataCollatorForPreference(pad_token_id=tokenizer.pad_token_id)(rows)
    return {"loss": float(trainer.compute_loss(trainer.model, batch))}


class Norm(TrainerCallback):
    """The norm of the gradient, before it is used."""

    value = 0.0

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Take it."""
        squares = (p.grad.double().pow(2).sum() for p in model.parameters() if p.grad is not None)
        self.value = float(sum(squares)) ** 0.5


def groups(job: Job, folder: Path, rows: list[dict[str, Any]]) -> dict[str, float]:
    """Loss and gradient's norm of the exported weights on these rollouts."""
    names = ("prompt_ids", "completion_ids", "logprobs")
    prompts = list(dict.fromkeys(tuple(row["prompt_ids"]) for row in rows))

    def rollouts(texts: list[str], trainer: Any) -> dict[str, Any]:
        left = {str(place): [r for r in rows if tuple(r["prompt_ids"]) == prompt] for place, prompt in enumerate(prompts)}
        taken = [left[text].pop(0) for text in texts]
        return {name: [row[name] for row in taken] for name in names} | {"earned": [row["reward"] for row in taken]}

    base = AutoModelForCausalLM.from_pretrained(job.model if job.mode == "lora" else folder / "policy", dtype="float32")
    norm, losses = Norm(), []
    trainer = GRPOTrainer(
        model=PeftModel.from_pretrained(base, folder / "policy", is_trainable=True) if job.mode == "lora" else base,
        reward_funcs=lambda earned, **_: earned,
        args=GRPOConfig(
            num_generations=GRPO_GENERATIONS, per_device_train_batch_size=len(rows), beta=0.0, learning_rate=1e-9,
            max_grad_norm=0.0, disable_dropout=True, max_completion_length=64, shuffle_dataset=False, **common(job),
        ),
        train_dataset=Dataset.from_dict({"prompt": [str(place) for place in range(len(prompts))]}),
        processing_class=AutoTokenizer.from_pretrained(job.model),
        rollout_func=rollouts,
        callbacks=[norm],
    )  # fmt: skip
    inner = trainer.compute_loss

    def noted(*args: Any, **kwargs: Any) -> Any:
        made = inner(*args, **kwargs)
        losses.append(float(made))
        return made

    trainer.compute_loss = noted
    trainer.train()
    return {"loss": losses[0], "grad_norm": norm.value}


def main(job: Job, folder: Path) -> None:
    """Write `peer.json` into the folder."""
    rows = json.loads((folder / "product.json").read_text())["rows"]
    found = (preferences if job.work == "dpo" else groups)(replace(job, units=1, steps=1), folder, rows)
    (folder / "peer.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Job.read(sys.argv[1]), Path(sys.argv[2]))
