from dataclasses import replace

import pytest
import yaml
from nat_finetune_plugins.nemo_rl.dpo_job import dpo_yaml, plan_dpo
from nat_finetune_plugins.nemo_rl.job_config import Place
from pydantic import ValidationError

from nat_finetune.errors import NoTrainableSignal
from tests.plugins.nemo_rl import rules
from tests.plugins.nemo_rl.made import settings
from tests.plugins.nemo_rl.stock import make_checkout


def planned(config, pairs=64, validation=0):
    return plan_dpo(config, config.algorithm, pairs, validation)


def merged(tmp_path, pairs=64, validation=0, **more):
    """The config as NeMo RL resolves it, checked by its rules."""
    checkout = make_checkout(tmp_path / "rl")
    config = settings(checkout, **more)
    text = dpo_yaml(config, config.algorithm, planned(config, pairs, validation), Place("/job", str(checkout)), seed=5)
    path = tmp_path / "config.yaml"
    path.write_text(text)
    tree, stock = rules.load(path)
    rules.check_keys(tree, stock)
    rules.check(tree)
    return tree


def test_every_setting_arrives(tmp_path):
    tree = merged(
        tmp_path,
        algorithm={
            "name": "dpo",
            "beta": 0.3,
            "loss": "sigmoid_norm",
            "sft_loss_weight": 0.2,
            "sft_average_log_probs": True,
            "batch_size": 16,
        },
        learning_rate=3e-7,
        weight_decay=0.01,
        betas=[0.8, 0.95],
        warmup_steps=3,
        max_grad_norm=0.5,
        epochs=2,
        micro_batch_size=2,
        max_length=777,
        lora={"rank": 4, "alpha": 8},
        precision="float32",
        cluster={"gpus_per_node": 4, "tensor_parallel": 2},
        save_every=2,
        keep_checkpoints=5,
        overrides={"policy.dtensor_cfg.activation_checkpointing": True},
    )
    policy, dpo, saving = tree["policy"], tree["dpo"], tree["checkpointing"]
    assert policy["model_name"] == policy["tokenizer"]["name"] == "some-org/some-model"
    assert policy["optimizer"] == {
        "name": "torch.optim.AdamW",
        "kwargs": {"lr": 3e-7, "weight_decay": 0.01, "betas": [0.8, 0.95], "eps": 1e-5, "foreach": False, "fused": False},
    }
    assert [part.get("kwargs", part) for part in policy["scheduler"]] == [
        {"start_factor": 0.25, "end_factor": 1.0, "total_iters": 3},
        {"factor": 1.0, "total_iters": 10_000_000_000},
        {"milestones": [3]},
    ]
    assert (policy["train_global_batch_size"], policy["train_micro_batch_size"], policy["max_grad_norm"]) == (16, 2, 0.5)
    assert policy["max_total_sequence_length"] == tree["data"]["max_input_seq_length"] == 777
    assert policy["dtensor_cfg"]["activation_checkpointing"] is True
    lora = policy["dtensor_cfg"]["lora_cfg"]
    assert (lora["enabled"], lora["dim"], lora["alpha"], lora["use_triton"]) == (True, 4, 8.0, False)
    assert (dpo["reference_policy_kl_penalty"], dpo["preference_average_log_probs"], dpo["sft_loss_weight"]) == (0.3, True, 0.2)
    assert dpo["sft_average_log_probs"] is True
    assert (dpo["max_num_steps"], dpo["max_num_epochs"], dpo["seed"]) == (8, 2, 5)
    assert (saving["save_period"], saving["keep_top_k"], saving["metric_name"]) == (2, 5, None)
    assert tree["data"]["validation"] is None
    assert tree["data"]["train"]["data_path"] == "/job/train.jsonl"


def test_megatron_gets_the_same_settings(tmp_path):
    tree = merged(
        tmp_path,
        backend="megatron",
        learning_rate=3e-7,
        betas=[0.8, 0.95],
        warmup_steps=4,
        lora={"rank": 4, "alpha": 8},
        cluster={"gpus_per_node": 4, "tensor_parallel": 2, "context_parallel": 2},
    )
    policy = tree["policy"]
    assert (policy["dtensor_cfg"]["enabled"], policy["megatron_cfg"]["enabled"]) == (False, True)
    megatron = policy["megatron_cfg"]
    assert (megatron["tensor_model_parallel_size"], megatron["context_parallel_size"]) == (2, 2)
    assert megatron["optimizer"] == {
        "lr": 3e-7,
        "min_lr": 3e-7,
        "weight_decay": 0.0,
        "adam_beta1": 0.8,
        "adam_beta2": 0.95,
        "adam_eps": 1e-8,
    }
    assert megatron["scheduler"]["lr_warmup_iters"] == 4
    assert megatron["peft"] == {"enabled": True, "dim": 4, "alpha": 8.0, "dropout": 0.0}
    assert policy["make_sequence_length_divisible_by"] == 8
    assert policy["optimizer"] is None


def test_held_out_pairs_choose_the_checkpoint(tmp_path):
    tree = merged(
        tmp_path, validation=11, cluster={"gpus_per_node": 2}, save_every=4, algorithm={"name": "dpo", "batch_size": 8}
    )
    assert tree["checkpointing"]["metric_name"] == "val:validation-default_loss"
    assert tree["checkpointing"]["higher_is_better"] is False
    assert tree["dpo"]["val_global_batch_size"] == 10  # of 11, for 2 copies of the model
    assert (tree["dpo"]["val_period"], tree["dpo"]["val_at_end"], tree["dpo"]["val_batches"]) == (4, True, -1)


@pytest.mark.parametrize("pairs", [0, 3])
def test_fewer_pairs_than_a_batch_are_refused(pairs):
    config = settings("/rl")
    with pytest.raises(NoTrainableSignal, match="no step"):
        planned(config, pairs)


def test_the_refusal_names_a_batch_that_fits():
    config = settings("/rl", algorithm={"name": "dpo", "batch_size": 64}, cluster={"gpus_per_node": 4}, micro_batch_size=2)
    with pytest.raises(NoTrainableSignal, match=r"61 pairs .*batch_size 64: .*to a multiple of 8, 56 or less"):
        planned(config, 61)


def test_a_validation_that_would_see_nothing_is_refused():
    config = settings("/rl", cluster={"gpus_per_node": 4})
    with pytest.raises(NoTrainableSignal, match="1 pairs are held out, fewer than the 4 copies"):
        planned(config, 64, 1)


def test_steps_are_whole_batches_of_each_epoch():
    config = settings("/rl", epochs=3, algorithm={"name": "dpo", "batch_size": 10})
    assert (planned(config, 25).steps, planned(config, 25).left_out) == (6, 5)
    assert planned(settings("/rl", epochs=3, max_steps=4, algorithm={"name": "dpo", "batch_size": 10}), 25).steps == 4


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"overrides": {"data.train": 1}}, "overrides.data.train is not yours"),
        ({"overrides": {"policy": {}}}, "overrides.policy is not yours"),
        ({"overrides": {"policy.sequence_packing.enabled": True}}, "DPO refuses it"),
        ({"overrides": {"grpo.adv_estimator.name": "gdpo"}}, "see algorithm"),
        ({"overrides": {"policy.megatron_cfg.enabled": True}}, "see backend"),
        ({"env_vars": ["HF_TOKEN"]}, "env_vars would be ignored"),
        ({"workspace_on_cluster": "/mnt"}, "workspace_on_cluster would be ignored"),
        ({"micro_batch_size": 3}, "must be a multiple of 3"),
        ({"cluster": {"gpus_per_node": 3, "tensor_parallel": 2}}, "3 GPUs are no multiple"),
        ({"algorithm": {"name": "dpo", "beta": 0.1, "ref_policy_kl_penalty": 0.1}}, "two names of one setting"),
        ({"algorithm": {"name": "dpo", "sft_average_log_probs": True}}, "would be ignored"),
        ({"algorithm": {"name": "dpo", "label_smoothing": 0.1}}, "Extra inputs"),
        ({"checkout": "rl"}, "should match pattern"),
        ({"launch": {"name": "ray_jobs", "runtime_env": {"env_vars": {"A": "b"}}}}, "env_vars does not belong here"),
        ({"launch": {"name": "ray_jobs", "runtime_env": {"working_dir": "./x"}}}, "must be a URI"),
        ({"launch": {"name": "ray_jobs", "url": "http://user:key@head:8265"}}, "should match pattern"),
    ],
)
def test_what_would_be_ignored_or_refused_later_is_refused_now(change, said):
    with pytest.raises(ValidationError, match=said):
        settings("/rl", **change)


def test_the_file_says_what_it_is_and_why(tmp_path):
    config = settings("/rl")
    text = dpo_yaml(config, config.algorithm, planned(config), Place("/job", "/rl"), seed=5)
    assert text.startswith("# Written by nat-finetune")
    assert "    # Pairs. Only whole batches" not in text
    assert "  # Pairs. Only whole batches" in text
    assert yaml.safe_load(text)["defaults"] == "/rl/examples/configs/dpo.yaml"
    assert text == dpo_yaml(config, config.algorithm, replace(planned(config)), Place("/job", "/rl"), seed=5)
