"""A DPO job of NeMo RL: how many steps it will do, and the config file that makes it do them."""

from __future__ import annotations

from dataclasses import dataclass

from nat_finetune_plugins.nemo_rl.job_config import TRAIN, VALIDATION, Place, Tree, as_yaml, common, merged, overridden
from nat_finetune_plugins.nemo_rl.settings import DpoConfig, NemoRLTrainerAdapterConfig

from nat_finetune.errors import NoTrainableSignal

SCRIPT = "examples/run_dpo.py"
STOCK = "examples/configs/dpo.yaml"
METRIC = "val:validation-default_loss"
VALIDATION_PAIRS = 8
"""Of one batch, where there are as many for each copy of the model."""
_HEAD = """Written by nat-finetune for one job of NeMo RL's DPO; see docs/backends.md.
Every key that is not here comes from the stock config that `defaults` names."""
_NOTES = {
    "train_global_batch_size": "Pairs. Only whole batches are trained: the last ones of an epoch that fill none are left out.",
    "reference_policy_kl_penalty": "beta",
    "sequence_packing": "Refused by NeMo RL's DPO, as is dynamic batching.",
    "_override_": "The stock file trains on HelpSteer3: this section replaces its own.",
}


@dataclass(frozen=True, slots=True)
class DpoPlan:
    """What a job will do."""

    pairs: int
    validation: int
    batch: int
    steps: int
    left_out: int
    """Pairs of each epoch that fill no batch."""
    validation_batch: int | None
    """None: nothing is validated."""

    @property
    def metric(self) -> str | None:
        """By which the best checkpoint is known; None: the last one is taken."""
        return None if self.validation_batch is None else METRIC


def plan_dpo(config: NemoRLTrainerAdapterConfig, algorithm: DpoConfig, pairs: int, validation: int) -> DpoPlan:
    """Batches and steps of so many pairs.

    Raises:
        NoTrainableSignal: they fill no batch, so NeMo RL would end after zero steps, without an error and without a checkpoint;
            or what is held out fills none.
    """
    batch, copies = algorithm.batch_size, config.cluster.replicas
    if pairs < batch:
        step = copies * config.micro_batch_size
        fitting = pairs // step * step
        multiple = f"a multiple of {step}, " if step > 1 else ""
        advice = f"set algorithm.batch_size to {multiple}{fitting} or less" if fitting else f"{step} are needed at least"
        raise NoTrainableSignal(
            f"{pairs} pairs to train on are fewer than algorithm.batch_size {batch}: NeMo RL trains whole batches only, so it "
            f"would do no step and end without an error; {advice}, or collect more"
        )
    if validation and validation < copies:
        raise NoTrainableSignal(
            f"{validation} pairs are held out, fewer than the {copies} copies of the model: NeMo RL would validate on nothing; "
            "give a larger validation_share, or 0"
        )
    steps = config.epochs * (pairs // batch)
    planned = steps if config.max_steps is None else min(steps, config.max_steps)
    fitted = min(validation, VALIDATION_PAIRS * copies) // copies * copies
    return DpoPlan(pairs, validation, batch, planned, pairs % batch, fitted or None)


def dpo_yaml(config: NemoRLTrainerAdapterConfig, algorithm: DpoConfig, plan: DpoPlan, place: Place, *, seed: int) -> str:
    """The config file."""
    tree = common(config, place, steps=plan.steps, batch=plan.batch, metric=plan.metric)
    tree = merged(tree, _dpo(config, algorithm, plan, place, seed=seed))
    tree = {"defaults": place.stock(STOCK), **overridden(tree, config.overrides)}
    return as_yaml(tree, head=_HEAD, notes=_NOTES)


def _dpo(config: NemoRLTrainerAdapterConfig, algorithm: DpoConfig, plan: DpoPlan, place: Place, *, seed: int) -> Tree:
    validated = plan.validation_batch is not None
    average = algorithm.loss == "sigmoid_norm"
    return {
        "dpo": {
            "max_num_epochs": config.epochs,
            "max_num_steps": plan.steps,
            "val_period": (config.save_every or plan.steps) if validated else 0,
            "val_at_start": validated,
            "val_at_end": validated,
            "val_batches": -1,
            "val_global_batch_size": plan.validation_batch or config.cluster.replicas,
            "val_micro_batch_size": 1,
            "seed": seed,
            "reference_policy_kl_penalty": algorithm.strength,
            "preference_average_log_probs": average,
            "sft_average_log_probs": algorithm.sft_average_log_probs,
            "preference_loss_weight": algorithm.preference_loss_weight,
            "sft_loss_weight": algorithm.sft_loss_weight,
        },
        "policy": {"sequence_packing": {"enabled": False}, "dynamic_batching": {"enabled": False}},
        "data": {
            "_override_": True,
            "max_input_seq_length": config.max_length,
            "shuffle": True,
            "num_workers": 1,
            "train": _dataset(place.path(TRAIN)),
            "validation": _dataset(place.path(VALIDATION)) if validated else None,
        },
    }


def _dataset(path: str) -> Tree:
    # A local file has one split, and it is called "train" whichever side it is for.
    return {"dataset_name": "PreferenceDataset", "data_path": path, "split": "train"}
