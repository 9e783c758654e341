"""Stands in for `uv run examples/run_dpo.py --config FILE` in tests: reads what NeMo RL reads, refuses what it refuses, and
leaves what it leaves: a log with losses, `step_N/training_info.json`. It trains nothing.

`behaviour.json` of the checkout (the working directory) says how it goes: `step_seconds`; `fail` = `at_start`, `mid_run`,
`oom`; `hang` = `at_start`, `mid_run`; `child` starts a process beside itself, as NeMo RL starts Ray.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parent))
import rules

Tree = dict[str, Any]


def say(line: str) -> None:
    print(line, flush=True)


def main(arguments: list[str]) -> None:
    if arguments[:2] == ["run", "--help"] or arguments[:1] != ["run"] or not Path(arguments[1]).is_file():
        sys.exit(f"error: Failed to spawn: `{' '.join(arguments)}`")
    with Path("starts.log").open("a") as log:
        log.write(f"{arguments[3]}\n")
    behaviour = json.loads(Path("behaviour.json").read_text())
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True)
    given, overrides = parser.parse_known_args(arguments[2:])
    if overrides:
        sys.exit(f"unexpected overrides {overrides}")
    if behaviour.get("child"):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path("child.pid").write_text(str(child.pid))
    pause(behaviour.get("hang") == "at_start")
    if behaviour.get("fail") == "at_start":
        raise ModuleNotFoundError("No module named 'nemo_rl'")
    config, stock = rules.load(Path(given.config))
    say(f"Loaded configuration from: {given.config}")
    if arguments[1].endswith("run_dpo.py"):
        rules.check_keys(config, stock)
        rules.check(config)
        train(config, behaviour)
    else:
        rules.check_grpo(config)
        train_groups(config, behaviour)


def train_groups(config: Tree, behaviour: Tree) -> None:
    grpo, rows = config["grpo"], rules.gym_rows(config)
    servers = rules.gym_servers(config, Path("3rdparty/Gym-workspace/Gym"))
    weights = servers["nat_finetune"]["resources_servers"]["nat_finetune"]["reward_weights"]
    if grpo["adv_estimator"]["name"] == "gdpo" and len(grpo["adv_estimator"]["reward_weights"]) != len(weights):
        raise ValueError("GDPO: one weight for each reward")
    per_epoch = len(rows) // grpo["num_prompts_per_step"]
    last = min(grpo["max_num_steps"], grpo["max_num_epochs"] * per_epoch)
    for step in range(1, last + 1):
        say(f"\n{'=' * 25} Step {step}/{last} {'=' * 25}")
        time.sleep(behaviour.get("step_seconds", 0.0))
        if step == last or step % config["checkpointing"]["save_period"] == 0:
            info = {"step": step, "total_steps": step, "consumed_samples": step * grpo["num_prompts_per_step"]}
            save(Path(config["checkpointing"]["checkpoint_dir"]), step, info, config)
        say(f"\n📊 Training Results:\n  • Loss: 0.0{step}00\n  • Avg Reward: 0.{step}000\n")
        say("⏱️  Timing:\n  • Total step time: 1.00s")


def pause(stops: bool) -> None:
    while stops:
        time.sleep(0.05)


def train(config: Tree, behaviour: Tree) -> None:
    dpo, batch = config["dpo"], config["policy"]["train_global_batch_size"]
    pairs = rules.rows(config["data"]["train"])
    held = rules.rows(config["data"]["validation"]) if config["data"]["validation"] else []
    say(f"📊 Using checkpoint directory: {config['checkpointing']['checkpoint_dir']}")
    per_epoch = len(pairs) // batch  # drop_last
    last = min(dpo["max_num_steps"], dpo["max_num_epochs"] * per_epoch)
    if held and dpo["val_at_start"]:
        say("\n🔍 Running initial validation...")
        say("    • Validation loss: 0.6931")
    info: Tree = {"consumed_samples": 0, "total_valid_tokens": 0}
    done = max((int(found.name[5:]) for found in Path(config["checkpointing"]["checkpoint_dir"]).glob("step_*")), default=0)
    for step in range(done + 1, last + 1):
        say(f"\n{'=' * 25} Step {(step - 1) % per_epoch + 1}/{min(per_epoch, dpo['max_num_steps'])} {'=' * 25}")
        say("▶ Taking a training step...")
        time.sleep(behaviour.get("step_seconds", 0.0))
        middle = step == max(1, last // 2 + 1)
        pause(middle and behaviour.get("hang") == "mid_run")
        if middle and behaviour.get("fail") == "oom":
            say("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79.1 GiB in total")
            sys.exit(1)
        if middle and behaviour.get("fail") == "mid_run":
            raise RuntimeError("a worker died")
        info |= {"epoch": (step - 1) // per_epoch, "step": step % per_epoch, "total_steps": step}
        info["consumed_samples"] += batch
        info["total_valid_tokens"] += 10 * batch
        validated = held and (step % dpo["val_period"] == 0 or (step == last and dpo["val_at_end"]))
        info = {name: value for name, value in info.items() if not name.startswith("val")}
        if validated:
            info["val:validation-default_loss"] = loss(step) + (0.5 if step > 2 else 0.0)
            info["val:validation-default_accuracy"] = 0.75
        if step % config["checkpointing"]["save_period"] == 0 or step == last:
            save(Path(config["checkpointing"]["checkpoint_dir"]), step, info, config)
        say("\n📊 Training Results:")
        say(f"  • loss: {loss(step):.4f}\n  • accuracy: 0.7500\n")
        say("\n⏱️  Timing:\n  • Total step time: 0.01s")


def loss(step: int) -> float:
    return 0.7 * math.exp(-0.1 * step)


def save(folder: Path, step: int, info: Tree, config: Tree) -> None:
    new = folder / f"tmp_step_{step}"
    for part in ("policy/weights", "policy/tokenizer"):
        (new / part).mkdir(parents=True)
    (new / "training_info.json").write_text(json.dumps(info))
    (new / "config.yaml").write_text(yaml.safe_dump(config))
    os.rename(new, folder / f"step_{step}")


if __name__ == "__main__":
    main(sys.argv[1:])
