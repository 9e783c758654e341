"""The peer's side, run by a Python of its own that has TRL 1.16: `python peer.py JOB.json`.

Each optimiser step of TRL's trainers waits for the driver before it begins. The clock runs from there to the end of the step:
start-up, data preparation and the time between two steps are left out.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.metadata import version
from typing import Any

import torch
from datasets import Dataset
from peer_turns import Turns, generate_loop
from peft import LoraConfig
from protocol import Job, Side, Spent
from transformers import AutoTokenizer, TrainerCallback
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer
from workload import AGENT_GENERATIONS, BATCH, GRPO_GENERATIONS, GRPO_TOKENS, TURNS, render, reward_of


class Paced(TrainerCallback):
    """Lets the trainer make as many steps as a unit has, then waits; answers with what they took."""

    def __init__(self, job: Job, side: Side) -> None:
        self._job, self._side = job, side
        self._steps: list[Spent] = []
        self._step = Spent()
        self.generations: list[Spent] = []
        self.losses: list[float] = []
        self.sampled: list[int] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Wait for the driver where a unit begins."""
        if not self._steps and not self._side.told():
            sys.exit(0)
        self._step = Spent()
        self._step.__enter__()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Answer where it ends."""
        self._step.__exit__()
        self._steps.append(self._step)
        if len(self._steps) < self._job.steps:
            return
        count, whole = len(self._steps), _sum(self._steps)
        unit: dict[str, Any] = {"step": whole.over(count), "update": whole.over(count), "losses": self.losses}
        if self.generations:
            drawn = _sum(self.generations)
            unit["generation"] = drawn.over(count)
            unit["update"] = Spent(whole.wall - drawn.wall, whole.cpu - drawn.cpu).over(count)
            unit["sampled"] = sum(self.sampled) / count
        self._side.done(unit)
        for values in (self._steps, self.generations, self.losses, self.sampled):
            values.clear()


def _sum(spent: list[Spent]) -> Spent:
    return Spent(sum(one.wall for one in spent), sum(one.cpu for one in spent))


def common(job: Job) -> dict[str, Any]:
    """What all trainers are told."""
    quiet = {"logging_strategy": "no", "save_strategy": "no", "eval_strategy": "no", "report_to": "none", "disable_tqdm": True}
    plain = {"lr_scheduler_type": "constant", "warmup_steps": 0, "fp16": False, "gradient_checkpointing": False, "seed": 0}
    device = {"use_cpu": job.device == "cpu", "bf16": job.dtype == "bfloat16", "dataloader_pin_memory": False}
    device["model_init_kwargs"] = {"dtype": job.dtype}
    return {"output_dir": tempfile.mkdtemp(), "max_steps": max(1, job.units) * job.steps, **quiet, **plain, **device}


def lora(job: Job) -> LoraConfig | None:
    """The adapter; None where all weights are trained."""
    if job.mode == "full":
        return None
    return LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")


def dpo_trainer(job: Job, paced: Paced) -> DPOTrainer:
    """On the same tokens as the product: texts, whose completions TRL ends with the end-of-turn token and nothing after it."""
    tokenizer, data = AutoTokenizer.from_pretrained(job.model), job.data()
    rows = [
        {
            "prompt": tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True),
            "chosen": row["chosen"][0]["content"],
            "rejected": row["rejected"][0]["content"],
        }
        for row in data
    ]
    settings = DPOConfig(
        per_device_train_batch_size=BATCH, beta=0.1, learning_rate=1e-4, max_length=None,
        train_sampling_strategy="sequential", **common(job),
    )  # fmt: skip
    trainer = DPOTrainer(
        model=job.model, args=settings, train_dataset=Dataset.from_list(rows), processing_class=tokenizer,
        peft_config=lora(job), callbacks=[paced],
    )  # fmt: skip
    for made, row in zip(trainer.train_dataset, data, strict=True):
        wanted = (row["prompt_ids"], row["chosen_ids"][:-1], row["rejected_ids"][:-1])  # the last one is the line's end
        if (made["prompt_ids"], made["chosen_ids"], made["rejected_ids"]) != wanted:
            raise SystemExit("the peer reads other tokens than the workload has")
    return trainer


def grpo_trainer(job: Job, paced: Paced) -> GRPOTrainer:
    """`grpo`: one turn by TRL's own generation. `agent`: four turns by a `rollout_func`, then TRL's update."""
    data, agent = job.data(), job.work == "agent"
    generations = AGENT_GENERATIONS if agent else GRPO_GENERATIONS
    rows = len(data) * generations
    shape = {"per_device_train_batch_size": rows, "max_completion_length": GRPO_TOKENS}
    if agent:  # in micro-batches of 4: one batch of 16 would hold three times the memory
        shape = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": rows // 4, "max_completion_length": 512}
    settings = GRPOConfig(
        num_generations=generations, num_iterations=1, beta=0.0, learning_rate=1e-5, temperature=1.0, shuffle_dataset=False,
        generation_kwargs={} if agent else {"min_new_tokens": GRPO_TOKENS}, **shape, **common(job),
    )  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(job.model)
    if any(render(tokenizer, row["prompt"], prompt=True) != row["prompt_ids"] for row in data):
        raise SystemExit("the peer reads other tokens than the workload has")
    turns = Turns(tokenizer, data) if agent else None

    def reward(completions: list[Any], completion_ids: list[list[int]], **_: Any) -> list[float]:
        paced.sampled.append(sum(map(len, completion_ids)) if turns is None else turns.sampled)
        return [reward_of(completion[0]["content"]) for completion in completions]

    trainer = GRPOTrainer(
        model=job.model, reward_funcs=reward, args=settings, peft_config=lora(job), callbacks=[paced],
        train_dataset=Dataset.from_list([{"prompt": row["prompt"]} for row in data]),
        processing_class=tokenizer, rollout_func=turns,
    )  # fmt: skip
    generate = trainer._generate_and_score_completions

    def timed(*args: Any, **kwargs: Any) -> Any:
        with Spent() as spent:
            made = generate(*args, **kwargs)
        paced.generations.append(spent)
        return made

    trainer._generate_and_score_completions = timed
    return trainer


def keep_losses(trainer: Any, paced: Paced) -> None:
    """Note each micro-batch's loss."""
    inner = trainer.compute_loss

    def noted(*args: Any, **kwargs: Any) -> Any:
        made = inner(*args, **kwargs)
        paced.losses.append(float(made[0] if isinstance(made, tuple) else made))
        return made

    trainer.compute_loss = noted


def main(job: Job) -> None:
    """Do units until there are no more."""
    torch.set_num_threads(job.threads)
    side = Side()
    versions = {name: version(name) for name in ("trl", "torch", "transformers", "peft")}
    if job.work == "load":
        unit = generate_loop(job)
        side.ready(versions=versions, turns=TURNS)
        while side.told():
            side.done(unit())
        return
    paced = Paced(job, side)
    trainer = (dpo_trainer if job.work == "dpo" else grpo_trainer)(job, paced)
    keep_losses(trainer, paced)
    side.ready(versions=versions)
    trainer.train()


if __name__ == "__main__":
    main(Job.read(sys.argv[1]))
