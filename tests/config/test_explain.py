"""`explain`: meaning, default, value and origin of a key."""

import pytest

from nat_finetune.config.explain import explain
from nat_finetune.config.load import load_config
from nat_finetune.errors import ConfigError
from nat_finetune.registry import Registry
from tests.source_tree import ROOT

REGISTRY = Registry.installed()
DPO = ROOT / "configs" / "dpo_tic_tac_toe.yml"


def test_without_a_config_components_stand_for_entries():
    found = explain("trainer_adapters.local_trainer_adapter.epochs", REGISTRY)
    assert found.meaning == "Passes over a collection in one update."
    assert (found.default, found.expects) == ("1", "a whole number, at least 1")
    assert found.honoured == "`_type: local_trainer_adapter`"
    assert found.value is None


def test_a_key_that_must_be_given_has_no_default():
    found = explain("trainer_adapters.local_trainer_adapter.learning_rate", REGISTRY)
    assert (found.default, found.expects) == (None, "a number, above 0")


def test_who_honours_a_key_of_finetuning():
    found = explain("finetuning.examples_per_step", REGISTRY)
    assert "on_policy_trainer" in found.honoured.split("; not by ")[0]
    assert "preference_trainer" in found.honoured.split("; not by ")[1]


def test_where_a_value_comes_from(tmp_path):
    base, own = tmp_path / "base.yml", tmp_path / "own.yml"
    base.write_text("config_version: 1\nfinetuning:\n  seed: 4\n  num_epochs: 2\n")
    own.write_text("base: base.yml\nfinetuning:\n  num_epochs: 3\n  confidence: ${LEVEL}\n")
    loaded = load_config(own, ["finetuning.flat_patience=7"], registry=REGISTRY, environment={"LEVEL": "0.9"})

    def origin(key):
        found = explain(f"finetuning.{key}", REGISTRY, loaded)
        return found.value, found.origin

    assert origin("seed") == ("4", f"{base}:3 (a base file)")
    assert origin("num_epochs") == ("3", f"{own}:3")
    assert origin("confidence") == ("${LEVEL}", f"{own}:4, from the environment")
    assert origin("flat_patience") == ("7", "-o finetuning.flat_patience=7")
    assert origin("checkpoint_interval") == ("1", "the default")


def test_a_block_lists_its_keys():
    found = explain("trainer_adapters.here.lora", REGISTRY, load_config(DPO, registry=REGISTRY))
    assert {"rank", "alpha", "target_modules"} <= set(found.keys)
    assert found.expects == "a block or null"


def test_a_reference_says_what_it_names():
    assert explain("finetuning.trainer", REGISTRY).expects == "the name of an entry of trainers or null"


def test_a_secret_is_not_shown(tmp_path):
    config = tmp_path / "c.yml"
    config.write_text("config_version: 1\nllms:\n  judge: {_type: openai, model_name: m, api_key: sk-123456}\n")
    found = explain("llms.judge.api_key", REGISTRY, load_config(config, registry=REGISTRY))
    assert "sk-123456" not in repr(found)


def test_an_unknown_key_names_the_nearest():
    with pytest.raises(ConfigError, match="num_epochs"):
        explain("finetuning.num_epoch", REGISTRY)


def test_a_key_without_its_place_is_told_where_it_stands():
    with pytest.raises(ConfigError, match=r"learning_rate is a key of trainer_adapters\.local_trainer_adapter\.learning_rate"):
        explain("learning_rate", REGISTRY)
