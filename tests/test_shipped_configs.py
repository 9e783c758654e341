"""What every config in configs/ must keep to, beyond being valid."""

from pathlib import Path

import pytest

from nat_finetune.config.load import load_config
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
