"""`diff`: what two configs mean differently, and nothing of how they are written."""

import pytest

from nat_finetune.cli.main import main
from nat_finetune.config.differences import Change, differences
from nat_finetune.config.load import load_config
from nat_finetune.registry import Registry

REGISTRY = Registry.installed()


def loaded(folder, name, text, **environment):
    path = folder / name
    path.write_text(text)
    return load_config(path, registry=REGISTRY, environment=environment).config


def test_spelling_order_bases_and_defaults_are_no_difference(tmp_path):
    (tmp_path / "base.yml").write_text("config_version: 1\nfinetuning: {seed: 9, num_epochs: 2}\n")
    one = loaded(
        tmp_path,
        "one.yml",
        "base: base.yml\nfinetuning: {seed: '${SEED}'}\ntrainers: {t: {type: on_policy_trainer}}\n",
        SEED="3",
    )
    two = loaded(
        tmp_path,
        "two.yml",
        "trainers:\n  t: {_type: on_policy_trainer}\nfinetuning: {num_epochs: 2, seed: 3, confidence: 0.95}\n"
        "config_version: 1\n",
    )
    assert differences(one, two) == []


def test_each_kind_of_change(tmp_path):
    one = loaded(tmp_path, "one.yml", "config_version: 1\ntrainers: {a: {_type: on_policy_trainer}}\nmetadata: {team: x}\n")
    two = loaded(
        tmp_path,
        "two.yml",
        "config_version: 1\ntrainers: {b: {_type: on_policy_trainer}}\nfinetuning: {seed: 1}\nmetadata: {team: y}\n",
    )
    found = {difference.key: difference for difference in differences(one, two)}
    assert {key: difference.change for key, difference in found.items()} == {
        "trainers.a": Change.REMOVED,
        "trainers.b": Change.ADDED,
        "finetuning.seed": Change.CHANGED,
        "metadata.team": Change.CHANGED,
    }
    assert str(found["finetuning.seed"]) == "~ finetuning.seed: 0 → 1"


def test_another_type_is_one_difference(tmp_path):
    one = loaded(tmp_path, "one.yml", "config_version: 1\ntrainers: {t: {_type: on_policy_trainer}}\n")
    two = loaded(tmp_path, "two.yml", "config_version: 1\ntrainers: {t: {_type: preference_trainer}}\n")
    (only,) = differences(one, two)
    assert (only.key, only.change) == ("trainers.t", Change.CHANGED)


def test_secrets_are_compared_and_not_shown(tmp_path):
    text = "config_version: 1\nllms: {j: {_type: openai, model_name: m, api_key: sk-SECRET}}\n"
    one, two = loaded(tmp_path, "one.yml", text), loaded(tmp_path, "two.yml", text.replace("sk-SECRET", "sk-OTHER"))
    (only,) = differences(one, two)
    assert only.key == "llms.j.api_key"
    assert "sk-" not in str(only)


@pytest.mark.parametrize(("seed", "code"), [(0, 0), (1, 1)])
def test_exit_code_and_words(tmp_path, capsys, seed, code):
    one, two = tmp_path / "one.yml", tmp_path / "two.yml"
    one.write_text("config_version: 1\n")
    two.write_text(f"config_version: 1\nfinetuning: {{seed: {seed}}}\n")
    assert main(["diff", str(one), str(two)]) == code
    assert capsys.readouterr().out.endswith(f"{code} difference{'s' if code == 0 else ''}\n")
