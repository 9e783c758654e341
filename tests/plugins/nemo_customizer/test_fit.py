"""What NeMo Customizer can't do for a trainer, and what would be ignored, is refused before anything is loaded."""

import pytest

from nat_finetune.config.fit import misfits
from nat_finetune.config.load import load_config
from nat_finetune.registry import Registry
from tests.source_tree import ROOT

CONFIG = ROOT / "configs" / "dpo_tic_tac_toe_nemo_customizer.yml"
SFT = [
    'trajectory_builders.pairs={"_type": "sft_traj_builder", "ttc_step_name": "move_candidate"}',
    'trainer_adapters.customizer.hyperparameters={"training_type": "sft"}',
]


def problems(*overrides):
    try:
        loaded = load_config(CONFIG, overrides=overrides, registry=Registry.installed())
    except ValueError as error:
        return str(error)
    return "\n".join(map(str, misfits(loaded.config)))


def trainer(**keys):
    given = ", ".join(f'"{key}": {value}' for key, value in keys.items())
    return f'trainers.customizer={{"_type": "preference_trainer", {given}}}'


@pytest.mark.parametrize(
    "overrides", [[], [trainer(pair_weighting='"pair"')], SFT, ["trainers.customizer.wait_for_completion=false"]]
)
def test_what_fits(overrides):
    assert problems(*overrides) == ""


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([trainer(pair_weighting='"pair"', num_rounds=2)], "starts every update at the base model"),
        ([trainer(pair_weighting='"pair"'), "finetuning.num_epochs=2"], "starts every update at the base model"),
        ([trainer(num_runs=2)], "pairs of large candidate sets would count less"),
        ([*SFT, "trainers.customizer.max_pairs=5"], "trainers.customizer.max_pairs: would be ignored"),
        (["finetuning.num_epochs=2"], "finetuning.num_epochs"),
    ],
)
def test_what_does_not(overrides, said):
    assert said in problems(*overrides)
