"""A healthy config of its own, faults to plant into it and into shipped ones, and a model that is nothing but a header."""

import json
import struct
from pathlib import Path

ROOT = Path(__file__).parents[3]
CONFIGS = ROOT / "configs"

SMALL = """\
config_version: 1
llms:
  policy: {_type: local, model: builtin:tic-tac-toe, max_tokens: 2}
functions:
workflow: {_type: single_turn, llm: policy}
eval:
  general: {dataset: {_type: jsonl, file_path: train.jsonl}}
  evaluators:
    correct: {_type: exact_match}
    anything: {_type: regex, pattern: '[\\s\\S]*'}
trajectory_builders:
  groups: {_type: grpo_traj_builder, num_generations: 8}
trainer_adapters:
  here: {_type: local_trainer_adapter, algorithm: {name: grpo}, learning_rate: 3e-4}
trainers:
  fresh: {_type: on_policy_trainer}
finetuning:
  enabled: true
  trajectory_builder: groups
  trainer_adapter: here
  trainer: fresh
  reward_function: {name: correct}
  target_model: policy
  watch: [anything]
"""
ROWS = [{"id": n, "question": "." * n + "X" * (9 - n) + "|X", "answer": str(n)} for n in range(1, 9)]


def small_config(folder: Path, rows: list | None = None, added: str = "", **files: list) -> Path:
    """The small config in a folder, with its rows, further datasets by name, and an entry: `section: {name: …}`."""
    for name, held in {"train": ROWS if rows is None else rows, **files}.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in held), encoding="utf-8")
    section, _, entry = added.partition(": ")
    text = (
        SMALL.replace(f"{section}:\n", f"{section}:\n{'    ' if section == '  evaluators' else '  '}{entry}\n")
        if added
        else SMALL
    )
    (folder / "config.yml").write_text(text, encoding="utf-8")
    return folder / "config.yml"


def header_only(folder: Path, *, hidden: int, layers: int) -> Path:
    """A llama-like model of which only config.json and the header of the weights are there."""
    folder.mkdir()
    shapes = {"model.embed_tokens.weight": [32_000, hidden]}
    for layer in range(layers):
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            shapes[f"model.layers.{layer}.self_attn.{name}.weight"] = [hidden, hidden]
        for name in ("gate_proj", "up_proj", "down_proj"):
            shapes[f"model.layers.{layer}.mlp.{name}.weight"] = [4 * hidden, hidden]
    header = json.dumps({name: {"dtype": "BF16", "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()})
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header.encode())
    config = {"num_attention_heads": 32, "hidden_size": hidden, "num_hidden_layers": layers, "num_key_value_heads": 8}
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 32_000, "max_position_embeddings": 4096}))
    return folder


SPARE = "llms: spare: {_type: local, model: 'builtin:tic-tac-toe'}"
QUICK = {
    "a key that nobody knows": ("config", ["trainers.fresh.num_runz=1"]),
    "a key that the trainer does not honour": ("config", ["finetuning.dynamic_sampling={max_extra_examples: 2}"]),
    "an llm that nothing refers to": ("unused.entry", [], SPARE),
    "a target function that the workflow does not use": (
        "target.unreachable",
        ["finetuning.target_functions=[other]"],
        "functions: other: {_type: tic_tac_toe_move, llm: policy, style: tiny}",
    ),
    "another model than the workflow calls": (
        "target.unreachable",
        ["finetuning.target_model=spare"],
        SPARE,
    ),
    "LoRA with a rate for all weights": (
        "settings.learning-rate-low",
        ["trainer_adapters.here.lora={rank: 8}", "trainer_adapters.here.learning_rate=1e-6"],
    ),
    "hardly any temperature": ("settings.temperature-low", ["llms.policy.temperature=0.1"]),
    "groups of two": ("settings.few-generations", ["trajectory_builders.groups.num_generations=2"]),
    "a warm-up longer than the run": ("settings.warmup-long", ["trainer_adapters.here.warmup_steps=100"]),
    "a clip that clips nothing": ("settings.clip-wide", ["trainer_adapters.here.algorithm.clip_high=5"]),
    "a judge that is the policy": (
        "reward.own-judge",
        ["finetuning.reward_function.name=judge"],
        "  evaluators: judge: {_type: llm_judge, llm_name: policy}",
    ),
    "a model that is not there": ("model.unreadable", ["llms.policy.model=./nowhere"]),
    "a dataset that is not there": ("data.unreadable", ["eval.general.dataset.file_path=nowhere.jsonl"]),
    "finetuning that is off": ("config.not-enabled", ["finetuning.enabled=false"]),
}
"""Fault → finding, and what plants it into the small config: overrides, and an entry; found without loading a model."""

DEEP = {
    "a reward the wrong way round": (
        "reward.known-answers",
        ["finetuning.reward_function=null", "finetuning.reward_functions=[{name: correct, weight: -1}]"],
    ),
    "a reward that pays everything": ("signal.flat", ["finetuning.watch=[]", "finetuning.reward_function.name=anything"]),
    "an endpoint that is not there": (
        "endpoint.failed",
        ["eval.evaluators.anything={_type: llm_judge, llm_name: far}"],
        "llms: far: {_type: openai, model_name: m, base_url: 'http://127.0.0.1:9/v1', api_key: k}",
    ),
}
"""The same, found by trying it out."""

SHIPPED = {
    "completions that are cut off": ("gdpo_tool_calling", "tokens.cut", ["llms.policy.max_tokens=2"]),
    "a filter that leaves nothing": ("dpo_tic_tac_toe", "signal.filtered", ["trajectory_builders.pairs.min_score_diff=5"]),
    "candidates that are all alike": ("dpo_tic_tac_toe", "signal.flat", ["llms.policy.temperature=0"]),
    "a beta that holds nothing": ("dpo_tic_tac_toe", "settings.beta-unusual", ["trainer_adapters.here.algorithm.beta=0.001"]),
    "a curriculum that lets nothing through": (
        "grpo_claims_review",
        "signal.filtered",
        ["finetuning.curriculum_learning={enabled: true, min_reward_diff: 3}"],
    ),
    "several rewards of which one decides": (
        "gdpo_tool_calling",
        "reward.one-dominates",
        [
            "trainer_adapters.here.algorithm.name=grpo",
            "finetuning.reward_functions=[{name: correctness, weight: 10}, {name: format}]",
        ],
    ),
}
"""Faults of shipped configs: config, finding, overrides."""
