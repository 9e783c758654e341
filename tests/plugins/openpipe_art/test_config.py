"""NAT's fields and defaults; what ART takes is passed on, and what nothing would honour is refused with the reason."""

import pytest
from nat_finetune_plugins.openpipe_art.config import ArtTrainerAdapterConfig, ArtTrajBuilderConfig
from nat_finetune_plugins.openpipe_art.connection import server_config, trainable_model
from nat_finetune_plugins.openpipe_art.wire import read_dialect
from pydantic import ValidationError

from nat_finetune.config.load import load_config
from nat_finetune.errors import BackendError, ConfigError
from nat_finetune.registry import Registry
from tests.source_tree import ROOT

HERE = {"ip": "127.0.0.1", "port": 7623}
CONFIG = ROOT / "configs" / "grpo_tic_tac_toe_openpipe_art.yml"


def adapter(training=None, **backend):
    return ArtTrainerAdapterConfig.model_validate({"backend": {**HERE, **backend}, "training": training or {}})


def test_nats_defaults():
    config = ArtTrainerAdapterConfig.model_validate({"backend": HERE})
    backend = config.backend
    assert (backend.name, backend.project, backend.base_model) == ("trainer_run", "trainer_project", "Qwen/Qwen2.5-7B-Instruct")
    assert (backend.api_key.get_secret_value(), backend.delete_old_checkpoints) == ("default", False)
    assert (backend.init_args, backend.engine_args, backend.server_config) == (None, None, None)
    assert (config.training.learning_rate, config.training.beta) == (5e-5, 0.0)
    assert ArtTrajBuilderConfig().generations == 2


def test_what_art_takes_is_passed_on_as_it_is():
    config = adapter(
        {"learning_rate": "1e-6", "beta": 0.1, "weight_decay": 0.01, "optim": "adamw_torch"},
        init_args={"max_seq_length": 4096, "load_in_4bit": False},
        engine_args={"gpu_memory_utilization": 0.9},
        server_config={"server_args": {"port": 8011}, "log_file": "vllm.log"},
        api_key="sk-of-the-endpoint",
    )
    assert trainable_model(config).internal_config == {
        "init_args": {"max_seq_length": 4096, "load_in_4bit": False},
        "engine_args": {"gpu_memory_utilization": 0.9},
        "trainer_args": {"weight_decay": 0.01, "optim": "adamw_torch"},
    }
    assert config.training.learning_rate == 1e-6
    told = {"log_file": "vllm.log", "server_args": {"port": 8011, "api_key": "sk-of-the-endpoint"}}
    assert server_config(config) == told
    assert server_config(adapter()) is None
    assert "sk-of-the-endpoint" not in repr(config) + config.model_dump_json()


@pytest.mark.parametrize(("written", "found"), [("default", "default"), ("${ART_KEY}", "sk-of-the-endpoint")])
def test_a_run_finds_its_key_again(tmp_path, monkeypatch, written, found):
    monkeypatch.setenv("ART_KEY", "sk-of-the-endpoint")
    override = f"trainer_adapters.art.backend.api_key={written}"
    loaded = load_config(CONFIG, overrides=[override], registry=Registry.installed())
    kept = tmp_path / "config.yml"
    kept.write_text(loaded.to_yaml())
    assert "sk-of" not in kept.read_text()
    again = load_config(kept, registry=Registry.installed())
    assert again.config.trainer_adapters["art"].backend.api_key.get_secret_value() == found


REFUSED = [
    ({"training": {"warmup_steps": 5}}, "before each optimiser step"),
    ({"training": {"num_generations": 4}}, "trajectory_builders"),
    ({"training": {"wieght_decay": 0.1}}, "did you mean weight_decay"),
    ({"training": {"per_device_train_batch_size": 4}}, "one optimiser step of each sequence"),
    ({"training": {"learning_rate": 0}}, "greater than 0"),
    ({"init_args": {"token": "hf_abc"}}, "HF_TOKEN where the server runs"),
    ({"init_args": {"max_seq_len": 5}}, "did you mean max_seq_length"),
    ({"engine_args": {"model": "x"}}, "it is backend.base_model"),
    ({"engine_args": {"override_generation_config": {"top_p": 0.5}}}, "another distribution"),
    ({"server_config": {"server_args": {"api_key": "k"}}}, "it is backend.api_key"),
    ({"server_config": {"engine_args": {"dtype": "half"}}}, "it is backend.engine_args"),
    ({"api_key": "**********"}, "was not kept"),
    ({"name": "a b"}, "should match pattern"),
    ({"ip": "http://there"}, "should match pattern"),
    ({"port": 0}, "greater than or equal to 1"),
]


@pytest.mark.parametrize(("given", "says"), REFUSED)
def test_what_nothing_would_honour_is_refused_with_the_reason(given, says):
    with pytest.raises(ValidationError, match=says):
        adapter(given.pop("training", None), **given)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("trajectory_builders.art._type=grpo_traj_builder", "trains on messages, which"),
        ("trajectory_builders.art.num_generations=1", "must be at least 2"),
        ("llms.policy.logprobs=false", "records no logprobs"),
        ("llms.policy.temperature=0.4", "logprobs at temperature 0.4"),
        ("trainer_adapters.art.backend.prot=1", "prot"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_asked(override, says):
    with pytest.raises(ConfigError, match=says):
        load_config(CONFIG, overrides=[override], registry=Registry.installed())


@pytest.mark.parametrize(
    "answered", [{"paths": 5}, {"components": None}, {"components": {"schemas": {"TrainConfig": 1}}}, [], None]
)
def test_a_description_that_is_none(answered):
    with pytest.raises(BackendError, match="no ART server that nat-finetune knows"):
        read_dialect(answered, "http://host:1")
