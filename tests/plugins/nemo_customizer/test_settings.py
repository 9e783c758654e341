"""NAT's keys with NAT's defaults; every further one is sent or refused."""

import pytest
from nat_finetune_plugins.nemo_customizer.components import NeMoCustomizerTrainerConfig
from pydantic import ValidationError

from tests.plugins.nemo_customizer.configs import config


def body(**hyperparameters):
    return config(hyperparameters=hyperparameters).hyperparameters.body(seed=5)


def test_nats_fields_and_defaults():
    made = config()
    assert (made.dataset_name, made.create_namespace_if_missing, made.deploy_on_completion) == ("nat-dpo", True, False)
    assert (made.deployment_timeout_seconds, made.max_consecutive_status_failures) == (1800.0, 3)
    assert (made.deployment_config.image_tag, made.deployment_config.gpu) == ("latest", 1)
    assert made.deployment_config.description == "Fine-tuned model deployment"
    trainer = NeMoCustomizerTrainerConfig()
    assert (trainer.num_runs, trainer.deduplicate_pairs, trainer.max_pairs) == (1, True, None)
    assert (trainer.continue_on_collection_error, trainer.wait_for_completion) == (False, True)


def test_a_job_as_nat_sends_it_and_with_a_seed():
    assert body() == {
        "training_type": "dpo",
        "finetuning_type": "all_weights",
        "epochs": 3,
        "batch_size": 4,
        "learning_rate": 5e-05,
        "seed": 5,
        "dpo": {
            "ref_policy_kl_penalty": 0.1,
            "preference_loss_weight": 1.0,
            "preference_average_log_probs": False,
            "sft_loss_weight": 0.0,
        },
    }


def test_only_what_is_set_is_sent_of_the_rest():
    lora = {"adapter_dim": 16, "alpha": 32, "adapter_dropout": 0.1, "target_modules": ["*_proj"]}
    further = {
        "seed": 3, "max_steps": 50, "warmup_steps": 5, "weight_decay": 0.01, "optimizer": "adamw_with_cosine_annealing",
        "min_learning_rate": 1e-6, "adam_beta1": 0.9, "adam_beta2": 0.98, "log_every_n_steps": 5, "val_check_interval": 10,
        "sequence_packing_enabled": True,
    }  # fmt: skip
    sent = body(finetuning_type="lora", lora=lora, dpo={"sft_loss_weight": 0.1, "max_grad_norm": 1.0}, **further)
    assert sent["lora"] == lora
    assert {key: sent[key] for key in further} == further
    assert sent["dpo"]["max_grad_norm"] == 1.0
    assert "sft" not in sent


def test_supervised_finetuning_sends_no_dpo_block():
    sent = body(training_type="sft", sft={"hidden_dropout": 0.1})
    assert sent["sft"] == {"hidden_dropout": 0.1}
    assert "dpo" not in sent


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"training_type": "sft", "dpo": {}}, "dpo would be ignored: training_type is sft"),
        ({"sft": {"hidden_dropout": 0.1}}, "sft would be ignored"),
        ({"lora": {"adapter_dim": 16}}, "lora would be ignored: finetuning_type is all_weights"),
        ({"finetuning_type": "lora", "lora": {"adapter_dim": 12}}, "powers of 2, found 12"),
        ({"optimizer": "adam_with_flat_lr", "adam_beta1": 0.9}, "adam_beta1 would be ignored"),
        ({"min_learning_rate": 1e-3}, "min_learning_rate must be below learning_rate"),
        ({"max_steps": 5, "val_check_interval": 10}, "max_steps must not be less than val_check_interval"),
        ({"val_check_interval": 1.5}, "a fraction from 0.1 to 1: found 1.5"),
        ({"dpo": {"preference_loss_weight": 0}}, "nothing would be trained"),
        ({"dpo": {"sft_average_log_probs": True}}, "sft_loss_weight is 0"),
        ({"learning_rate": 0}, "greater than 0"),
        ({"learning_rat": 1e-4}, "Extra inputs are not permitted"),
        ({"training_type": "grpo"}, "'sft' or 'dpo'"),
    ],
)
def test_hyperparameters_that_would_be_ignored_or_make_no_sense(changes, said):
    with pytest.raises(ValidationError, match=said):
        config(hyperparameters=changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"deploy_on_completion": True}, "deploy_on_completion needs deployment_config.image_name"),
        ({"deployment_config": {"image_name": "x"}}, "deployment_config would be ignored"),
        ({"deployment_timeout_seconds": 5}, "deployment_timeout_seconds would be ignored"),
        ({"entity_host": "nemo.test"}, "expected http:// or https://"),
        ({"entity_host": "http://me:secret@nemo.test"}, "no user, query or fragment"),
        ({"hf_token": "**********"}, "was not kept: a run folder holds no secrets"),
        ({"hf_token": "two words"}, "can't stand in an HTTP header"),
        ({"headers": {"X-Gateway": "line\nbreak"}}, "can't stand in an HTTP header"),
        ({"headers": {"not a name": "x"}}, "no name of a header"),
        ({"headers": {"Authorization": "Bearer x"}}, "api_key and hf_token are what Authorization is made of"),
        ({"hyperparameters": {"training_type": "sft"}, "use_full_message_history": False}, "would be ignored"),
        ({"validation_split": 1.0}, "less than 1"),
        ({"output_model": "mine"}, "match pattern"),
    ],
)
def test_settings_that_are_refused(changes, said):
    with pytest.raises(ValidationError, match=said) as caught:
        config(**changes)
    assert not any("me:secret" in error["msg"] for error in caught.value.errors())


def test_an_empty_token_is_no_token_and_no_secret_is_shown():
    assert config(hf_token="", api_key=" ").hf_token is None
    shown = config(hf_token="hf-secret", api_key="nv-secret", headers={"X-Key": "gw-secret"})
    assert "secret" not in repr(shown) + shown.model_dump_json()


def test_a_slash_at_the_end_of_a_host_goes():
    assert config("http://nemo.test/").entity_host == "http://nemo.test"


def test_what_is_taken():
    assert config().takes() == {"pair"}
    assert config(hyperparameters={"training_type": "sft"}).takes() == {"pair", "demonstration"}


def test_the_trainer_keeps_its_filters():
    rules = NeMoCustomizerTrainerConfig(max_pairs=5, deduplicate_pairs=False).selection_rules()
    assert (rules.max_pairs, rules.deduplicate, rules.weighting) == (5, False, "pair")
