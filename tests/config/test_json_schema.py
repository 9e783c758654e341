"""The JSON Schema of configs, judged by an independent validator: it takes and refuses what nat-finetune does."""

import copy

import jsonschema
import pytest

from nat_finetune.config.inherit import read
from nat_finetune.config.json_schema import json_schema
from nat_finetune.config.schema import RunConfig
from nat_finetune.registry import Registry
from tests.source_tree import ROOT

REGISTRY = Registry.installed()
SCHEMA = json_schema(REGISTRY)
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
CONFIGS = sorted((ROOT / "configs").glob("*.yml"))
GOOD = read(ROOT / "configs" / "grpo_tic_tac_toe.yml", {}).tree.plain()
REMOVED = object()

BROKEN = [
    ("finetunning", {}),
    ("config_version", "one"),
    ("llms", []),
    ("llms.policy", "local"),
    ("llms.policy._type", REMOVED),
    ("llms.policy._type", "locl"),
    ("llms.policy.model", REMOVED),
    ("llms.policy.model", 5),
    ("llms.policy.max_tokens", 0),
    ("llms.policy.max_tokens", 1.5),
    ("llms.policy.max_tokens", "many"),
    ("llms.policy.temprature", 1.0),
    ("llms.policy.dtype", "float8"),
    ("functions.choose_move.llm", 3),
    ("functions.choose_move._type", "tic_tac_toe"),  # it exists, but takes other keys
    ("workflow._type", "nothing"),
    ("workflow.mode", "solitaire"),
    ("eval.generl", {}),
    ("eval.general.max_concurrency", 0),
    ("eval.general.dataset", "train.jsonl"),
    ("eval.general.dataset.file_path", REMOVED),
    ("eval.general.dataset.filter", {"allow": {}}),
    ("eval.evaluators.outcome._type", "exact_mach"),
    ("trajectory_builders.groups.num_generations", 0),
    ("trajectory_builders.groups.credit", "per_token"),
    ("trajectory_builders.groups.min_score_diff", 0.1),
    ("trainer_adapters.here.algorithm", REMOVED),
    ("trainer_adapters.here.algorithm", "grpo"),
    ("trainer_adapters.here.algorithm.name", "ppo"),
    ("trainer_adapters.here.algorithm.beta", 0.1),  # DPO's
    ("trainer_adapters.here.algorithm.kl_coefficient", -1),
    ("trainer_adapters.here.learning_rate", 0),
    ("trainer_adapters.here.learning_rate", REMOVED),
    ("trainer_adapters.here.schedule", "exponential"),
    ("trainer_adapters.here.betas", [0.9]),
    ("trainer_adapters.here.lora", {"rank": 0}),
    ("trainer_adapters.here.lora", {"dropout": 0.1}),
    ("trainers.fresh.num_runs", 2),  # the other trainer's
    ("finetuning.enabled", "sometimes"),
    ("finetuning.num_epochs", 0),
    ("finetuning.target_functions", []),
    ("finetuning.target_functions", "choose_move"),
    ("finetuning.max_failure_rate", 1.1),
    ("finetuning.seed", -1),
    ("finetuning.validation.dataset", 7),
    ("finetuning.validation.interval", 0),
    ("finetuning.test.metrics", []),
    ("finetuning.confidence", 1.0),
    ("metadata", "free text"),
]


def changed(path, value):
    config = copy.deepcopy(GOOD)
    *above, last = path.split(".")
    block = config
    for key in above:
        block = block[key]
    if value is REMOVED:
        del block[last]
    else:
        block[last] = value
    return config


def test_it_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_configs_conform(path):
    assert [error.message for error in VALIDATOR.iter_errors(read(path, {}).tree.plain())] == []


@pytest.mark.parametrize(("path", "value"), BROKEN, ids=[f"{path}-{i}" for i, (path, _) in enumerate(BROKEN)])
def test_broken_ones_do_not_and_pydantic_agrees(path, value):
    config = changed(path, value)
    assert not VALIDATOR.is_valid(config)
    with pytest.raises(ValueError, match=r"validation error"):
        RunConfig.read(config, REGISTRY)


@pytest.mark.parametrize(
    "config",
    [
        changed("trainer_adapters.here.learning_rate", "${LEARNING_RATE:-1e-4}"),
        changed("finetuning.deterministic", "${DETERMINISTIC}"),
        changed("trainers.fresh", {"type": "on_policy_trainer"}),
        {"base": "other.yml", "finetuning": {"validation": {"interval": 3}}},
        {},
    ],
    ids=["variable", "variable for a flag", "type", "base", "empty"],
)
def test_what_a_file_alone_can_not_decide_passes(config):
    assert [error.message for error in VALIDATOR.iter_errors(config)] == []


def test_a_file_with_a_base_has_no_unknown_section():
    assert not VALIDATOR.is_valid({"base": "other.yml", "finetunning": {}})


def test_keys_are_described():
    finetuning = SCHEMA["$defs"]["FinetuningConfig"]["properties"]
    assert finetuning["num_epochs"]["description"] == "Passes over the dataset."
    assert "Passes over a collection" in SCHEMA["$defs"]["LocalTrainerAdapterConfig"]["properties"]["epochs"]["description"]
