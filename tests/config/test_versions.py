"""Older configs: NAT's become today's, in memory and in the file, with comments and order kept and nothing lost unseen."""

import json

import pytest
import yaml

from nat_finetune.checks.smoke import smoke
from nat_finetune.cli.main import main
from nat_finetune.config.fit import misfits
from nat_finetune.config.load import load_config
from nat_finetune.config.nodes import parse
from nat_finetune.config.rewrite import rewrite
from nat_finetune.config.schema import CONFIG_VERSION
from nat_finetune.config.to_local import to_local
from nat_finetune.config.versions import MIGRATIONS, NIM_IMAGE, Put, Remove, edits_to_current, migrated
from nat_finetune.errors import ConfigError
from nat_finetune.registry import Registry
from tests.fixtures.nat import theirs
from tests.source_tree import ROOT

NAT = ROOT / "tests" / "fixtures" / "nat"
NEMO, ART = (NAT / "nemo_customizer.yml").read_text(), (NAT / "openpipe_art.yml").read_text()


def their_components():
    registry = Registry.installed()
    registry.add_module(theirs, origin="theirs 1.0")
    return registry


def plain(text):
    return parse(text, "config.yml").plain()


def test_every_version_has_its_migration():
    assert [migration.source for migration in MIGRATIONS] == list(range(CONFIG_VERSION))


@pytest.mark.parametrize("text", [NEMO, ART], ids=["nemo", "art"])
def test_memory_and_text_are_changed_alike(text):
    in_memory, notes = migrated(parse(text, "config.yml"))
    assert notes
    written = plain(rewrite(text, edits_to_current(plain(text))))
    assert written == {**in_memory.plain(), "config_version": 1}
    assert edits_to_current(written) == []


def test_what_nat_keeps_elsewhere():
    config = plain(rewrite(ART, edits_to_current(plain(ART))))
    assert config["llms"]["openpipe_llm"]["extra_body"] == {"top_logprobs": 1}
    assert config["finetuning"]["validation"] == {"dataset": {"_type": "json", "file_path": "held_out.json"}, "interval": 2}
    config = plain(rewrite(NEMO, edits_to_current(plain(NEMO))))
    assert "general" not in config
    assert config["eval"]["general"].keys() == {"max_concurrency", "dataset"}
    assert config["llms"]["training_llm"]["_type"] == "openai"
    assert config["llms"]["training_llm"]["base_url"].startswith("https://")


def test_todays_config_is_left_alone(tmp_path, capsys):
    path = tmp_path / "config.yml"
    text = (ROOT / "configs" / "dpo_tic_tac_toe.yml").read_text()
    path.write_text(text)
    assert main(["migrate", str(path)]) == 0
    assert path.read_text() == text
    assert "up to date" in capsys.readouterr().out


def test_comments_order_and_quotes_stay():
    text = "# head\nllms:\n  # why\n  m: {_type: 'local', model: \"a\"}  # which\nfinetuning:\n  seed: 0x10  # hex\n"
    assert rewrite(text, edits_to_current(plain(text))) == text.replace("# head\n", "# head\nconfig_version: 1\n")


def test_edits_reach_where_nothing_was():
    assert plain(rewrite("a: 1\n", [Put(("b", "c", "d"), [2], ""), Remove(("a",), "")])) == {"b": {"c": {"d": [2]}}}


def test_a_nat_file_loads_with_a_note_for_each_change(tmp_path):
    path = tmp_path / "config.yml"
    path.write_text("general: {}\ntrainers: {t: {_type: on_policy_trainer, reward: {name: x}}}\n")
    notes = load_config(path, registry=Registry.installed()).notes
    assert "config_version is absent" in notes[0]
    assert [note.partition(": removed")[0] for note in notes[1:]] == ["general", "trainers.t.reward"]


@pytest.mark.parametrize("key", ["general", "trainers.t.reward"])
def test_todays_files_have_no_such_keys(tmp_path, key):
    path = tmp_path / "config.yml"
    text = {"general": "general: {}\n", "trainers.t.reward": "trainers: {t: {_type: on_policy_trainer, reward: {name: x}}}\n"}
    path.write_text("config_version: 1\n" + text[key])
    with pytest.raises(ConfigError, match="NAT key that nat-finetune does not support"):
        load_config(path, registry=Registry.installed())


# ------------------------------------------------------------------------------------------- backends that stay as they are


def test_nats_customizer_example_validates_with_its_backend(tmp_path, capsys):
    path = tmp_path / "config.yml"
    assert main(["migrate", str(NAT / "nemo_customizer.yml"), "--output", str(path)]) == 0
    said = capsys.readouterr().out
    assert "deployment_config.image_name: nvcr.io/nim/meta/llama-3.1-8b-instruct" in said
    assert "finetuning.num_epochs: removed: NAT's trainer ignores it" in said
    loaded = load_config(path, registry=their_components(), environment={"HF_TOKEN": "", "NVIDIA_API_KEY": "key"})
    assert misfits(loaded.config) == []
    assert loaded.notes == ()
    adapter = loaded.config.trainer_adapters["customizer"]
    assert adapter.component_name == "nemo_customizer_trainer_adapter"
    assert adapter.hf_token is None
    assert adapter.deployment_config.image_name == "nvcr.io/nim/meta/llama-3.1-8b-instruct"
    assert adapter.hyperparameters.body(7)["dpo"] == {
        "ref_policy_kl_penalty": 0.2,
        "preference_loss_weight": 1.0,
        "preference_average_log_probs": True,
        "sft_loss_weight": 0.1,
    }


def customizer(**changes):
    config = plain(NEMO)
    config["trainer_adapters"]["customizer"] |= changes
    config = plain(rewrite(yaml.safe_dump(config), edits_to_current(config)))
    return config["trainer_adapters"]["customizer"]


def test_the_image_is_asked_for_where_the_model_does_not_tell_it():
    assert customizer(customization_config="my-config")["deployment_config"] == {"image_name": NIM_IMAGE}
    assert customizer(deployment_config={"image_name": "mine"})["deployment_config"] == {"image_name": "mine"}
    assert customizer(deployment_config={"gpu": 2})["deployment_config"]["gpu"] == 2


def test_what_nat_ignores_of_the_customizer_goes():
    kept = customizer(deploy_on_completion=False, deployment_config={"gpu": 2}, deployment_timeout_seconds=60)
    assert not kept.keys() & {"deployment_config", "deployment_timeout_seconds"}
    given = {"training_type": "sft", "dpo": {"sft_loss_weight": 1.0}}
    assert customizer(hyperparameters=given)["hyperparameters"] == {"training_type": "sft"}


# -------------------------------------------------------------------------------------------------------------- --to local


@pytest.mark.parametrize("name", ["nemo_customizer", "openpipe_art"])
def test_nats_examples_validate_as_local_ones(tmp_path, name):
    path = tmp_path / "config.yml"
    assert main(["migrate", str(NAT / f"{name}.yml"), "--to", "local", "--output", str(path)]) == 0
    loaded = load_config(path, registry=their_components(), environment={"MODEL": "./model"})
    assert loaded.notes == ()
    assert loaded.config.finetuning.enabled


@pytest.mark.parametrize("name", ["nemo_customizer", "openpipe_art"])
async def test_nats_examples_run_in_small_as_local_ones(tmp_path, monkeypatch, name):
    monkeypatch.setenv("MODEL", "./model")  # in whose place the policy of bytes stands
    path = tmp_path / "config.yml"
    assert main(["migrate", str(NAT / f"{name}.yml"), "--to", "local", "--output", str(path)]) == 0
    for file, sides in (("data.json", "XOXO"), ("held_out.json", "AB")):
        rows = [{"id": f"{file}-{i}", "question": f"{side}{i}", "answer": "Win!"} for i, side in enumerate(sides)]
        (tmp_path / file).write_text(json.dumps(rows))
    result = await smoke(path, [], their_components(), tmp_path / "small")
    assert result.report["exit_code"] == 0
    assert result.report["steps"][0]["tokens"]["trained"] > 0


def test_customizer_settings_have_local_equivalents():
    adapter = to_local(plain(NEMO)).edits[0]
    assert adapter.value == {
        "_type": "local_trainer_adapter",
        "algorithm": {"name": "dpo", "beta": 0.2, "loss": "sigmoid_norm", "sft_loss_weight": 0.1},
        "learning_rate": 5e-5,
        "epochs": 5,
        "batch_size": 8,
    }
    trainer = to_local(plain(NEMO)).edits[1]
    assert trainer.value == {"_type": "preference_trainer", "num_runs": 2, "deduplicate_pairs": True}


def test_nats_defaults_are_kept_where_nothing_is_set():
    config = plain(NEMO)
    del config["trainer_adapters"]["customizer"]["hyperparameters"]
    adapter = to_local(config).edits[0].value
    assert (adapter["learning_rate"], adapter["epochs"], adapter["batch_size"]) == (5e-5, 3, 4)
    assert adapter["algorithm"] == {"name": "dpo", "beta": 0.1}


def test_art_settings_have_local_equivalents():
    made = to_local(plain(ART))
    adapter, builder, trainer, llm = [edit.value for edit in made.edits]
    assert adapter["algorithm"] == {"name": "grpo", "kl_coefficient": 0.1}
    assert (adapter["learning_rate"], adapter["weight_decay"]) == (1e-6, 0.01)
    assert builder["num_generations"] == 4
    assert trainer == {"_type": "on_policy_trainer"}
    assert llm == {"_type": "local", "model": "Qwen/Qwen2.5-3B-Instruct", "temperature": 0.4}


@pytest.mark.parametrize(("text", "lost"), [(NEMO, "deploy_on_completion"), (ART, "backend.engine_args")])
def test_what_has_no_equivalent_is_listed(text, lost):
    assert any(lost in line for line in to_local(plain(text)).without_equivalent)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c["finetuning"].update(trainer_adapter="nope"), "no entry 'nope'"),
        (lambda c: c["trainer_adapters"].update(customizer={"_type": "local_trainer_adapter"}), "replaces a remote adapter"),
        (lambda c: c["trainer_adapters"]["customizer"]["hyperparameters"].update(training_type="sft"), "training_type"),
        (lambda c: c.pop("llms"), "llms has no entry"),
    ],
)
def test_what_can_not_be_local_is_refused(change, said):
    config = plain(NEMO)
    change(config)
    with pytest.raises(ConfigError, match=said):
        to_local(config)


# --------------------------------------------------------------------------------------------------------------------- CLI


def test_check_changes_nothing(tmp_path, capsys):
    path = tmp_path / "config.yml"
    path.write_text(ART)
    assert main(["migrate", "--check", str(path)]) == 1
    assert path.read_text() == ART
    assert "changes to make" in capsys.readouterr().out


def test_a_model_of_ones_own(tmp_path):
    path = tmp_path / "config.yml"
    path.write_text(NEMO)
    assert main(["migrate", str(path), "--to", "local", "--model", "owner/name"]) == 0
    assert plain(path.read_text())["llms"]["training_llm"]["model"] == "owner/name"
    assert [file.name for file in tmp_path.iterdir()] == ["config.yml"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["{here}", "--model", "x"],
        ["nowhere.yml"],
        ["{list}"],
        ["{bad}"],
        ["{newer}"],
        ["{word}"],
        ["{here}", "--to", "local", "--model", ""],
    ],
)
def test_bad_arguments(tmp_path, arguments):
    files = {"here": ART, "list": "- a\n", "bad": "a: [\n", "newer": "config_version: 2\n", "word": "config_version: x\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert main(["migrate", *(a.format(**{name: tmp_path / name for name in files}) for a in arguments)]) == 2
    assert all((tmp_path / name).read_text() == text for name, text in files.items())


def test_nothing_to_make_local_is_said(tmp_path, capsys):
    path = tmp_path / "config.yml"
    path.write_text("trainer_adapters: {here: {_type: x}}\n")
    assert main(["migrate", str(path), "--to", "local"]) == 2
    assert "finetuning.trainer_adapter: nothing is named here" in capsys.readouterr().err


def test_line_ends_links_and_rights_stay(tmp_path):
    path, link = tmp_path / "config.yml", tmp_path / "link.yml"
    path.write_bytes(ART.replace("\n", "\r\n").encode())
    path.chmod(0o640)
    link.symlink_to(path.name)
    assert main(["migrate", str(link)]) == 0
    written = path.read_bytes()
    assert written.count(b"\n") == written.count(b"\r\n") == written.count(b"\r")
    assert b"config_version" in written
    assert (link.is_symlink(), path.stat().st_mode & 0o777) == (True, 0o640)
