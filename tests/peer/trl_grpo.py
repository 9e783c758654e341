"""One step of TRL's GRPOTrainer on rollouts that are tokens already; run by TRL's own Python, not by pytest.

    python trl_grpo.py FOLDER

Reads `model/` and `batch.json` of the folder, writes `gradients.safetensors` and `loss.json`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from datasets import Dataset
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Keep(TrainerCallback):
    """Keeps the gradient as the optimiser would see it, before clipping changes it (max_grad_norm is 0)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Write the gradients."""
        save_file(
            {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None},
            self._folder / "gradients.safetensors",
        )


def main(folder: Path) -> None:
    """Make the step."""
    batch = json.loads((folder / "batch.json").read_text())
    rollouts = {(r["prompt"], tuple(r["completion_ids"])): r for r in batch["rollouts"]}
    of_prompt = {name: [r for r in batch["rollouts"] if r["prompt"] == name] for name in dict.fromkeys(p for p, _ in rollouts)}

    def rollout_func(prompts: list[str], trainer: Any) -> dict[str, Any]:
        left = {name: iter(rows) for name, rows in of_prompt.items()}
        chosen = [next(left[prompt]) for prompt in prompts]
        return {key: [r[key] for r in chosen] for key in ("prompt_ids", "completion_ids", "logprobs")}

    def reward(prompts: list[str], completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        return [rollouts[prompt, tuple(ids)]["reward"] for prompt, ids in zip(prompts, completion_ids, strict=True)]

    settings = GRPOConfig(
        output_dir=str(folder / "out"),
        num_generations=batch["generations"],
        learning_rate=1e-9,
        max_grad_norm=0.0,
        max_steps=1,
        logging_steps=1,
        shuffle_dataset=False,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        disable_dropout=True,
        max_completion_length=64,
        **batch["settings"],
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder / "model", dtype="float32"),
        processing_class=AutoTokenizer.from_pretrained(folder / "model"),
        reward_funcs=reward,
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": list(of_prompt)}),
        rollout_func=rollout_func,
        callbacks=[Keep(folder)],
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    (folder / "loss.json").write_text(json.dumps(losses))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
