"""What every config in configs/ must keep to, beyond being valid."""

from pathlib import Path

import pytest

from nat_finetune.config.load import load_config
from nat_finetune.errors import ConfigError
from nat_finetune.registry import Registry

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.yml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_model_behind_an_endpoint_is_not_asked_for_exact_scores(path):
    config = load_config(path, registry=Registry.installed()).config
    if config.llms[config.finetuning.target_model or next(iter(config.llms))].component_name == "local":
        return
    settings = {name: evaluator.model_dump() for name, evaluator in config.eval.evaluators.items()}
    asked = [name for name, given in settings.items() if given.get("exact") and (given.get("player") or given.get("caller"))]
    assert asked == [], "an endpoint can't score given completions"


EMPTY = [
    ("grpo_tic_tac_toe", "eval.general.dataset.file_path"),
    ("grpo_tic_tac_toe", "eval.general.dataset.structure.question_key"),
    ("grpo_tic_tac_toe", "finetuning.output_dir"),
    ("grpo_tic_tac_toe", "llms.policy.model"),
    ("grpo_tic_tac_toe", "llms.policy.revision"),
    ("dpo_tic_tac_toe_trl", "trainer_adapters.trl.python"),
    ("dpo_tic_tac_toe_nemo_rl", "trainer_adapters.cluster.workspace"),
    ("gdpo_tool_calling_nemo_rl", "trainer_adapters.cluster.algorithm.gym_folder"),
    ("dpo_tic_tac_toe_nemo_customizer", "trainer_adapters.{}.dataset_output_dir"),
]


@pytest.mark.parametrize(("name", "key"), EMPTY)
def test_an_empty_text_is_no_name_and_no_path(name, key):
    path, registry = Path(__file__).parents[1] / "configs" / f"{name}.yml", Registry.installed()
    key = key.format(load_config(path, registry=registry).config.finetuning.trainer_adapter)
    with pytest.raises(ConfigError) as caught:
        load_config(path, [f"{key}="], registry=registry)
    (problem,) = caught.value.problems
    assert problem.key == key
    assert "empty" in problem.message


def test_what_alternatives_of_a_value_expect_is_one_problem():
    path, wrong = CONFIGS[0].with_name("grpo_tic_tac_toe.yml"), "trainer_adapters.here.max_tokens_per_microbatch=0"
    with pytest.raises(ConfigError) as caught:
        load_config(path, [wrong], registry=Registry.installed())
    assert [problem.message for problem in caught.value.problems] == ["expected at least 1 or 'auto', found 0"]
