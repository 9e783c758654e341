"""Presets name things that exist, say what their papers say, and need no torch."""

import subprocess
import sys

import pytest

from nat_finetune.algorithms.advantages import BASELINES, SCALES
from nat_finetune.algorithms.kl import ESTIMATORS, GRADIENTS
from nat_finetune.algorithms.policy_gradient import RATIOS, SURROGATES, Clip
from nat_finetune.algorithms.presets import PRESETS
from nat_finetune.algorithms.reduce import REDUCTIONS


def test_the_presets_are_these() -> None:
    assert set(PRESETS) == {"grpo", "gdpo", "dr_grpo", "dapo", "gspo", "cispo", "reinforce", "rloo"}


@pytest.mark.parametrize("name", PRESETS)
def test_every_choice_exists(name: str) -> None:
    preset = PRESETS[name]
    assert preset.baseline in BASELINES
    assert preset.scale in SCALES
    assert preset.ratio in RATIOS
    assert preset.surrogate in SURROGATES
    assert preset.reduction in REDUCTIONS
    assert preset.kl_estimator in ESTIMATORS
    assert preset.kl_gradient in GRADIENTS
    if preset.surrogate == "reinforce":
        assert preset.clip_low is preset.clip_high is None
    else:
        assert preset.clip_low is not None
        assert preset.clip_high is not None
        Clip(preset.clip_low, preset.clip_high, dual=preset.dual_clip, ratio_cap=preset.ratio_cap)


def test_what_sets_each_apart() -> None:
    assert PRESETS["dr_grpo"].scale == "none"
    assert PRESETS["dr_grpo"].reduction == "constant_length"
    assert PRESETS["dapo"].clip_high == 0.28
    assert PRESETS["dapo"].overlong_buffer_share == 0.2
    assert PRESETS["gspo"].ratio == "sequence"
    assert (PRESETS["gspo"].clip_low, PRESETS["gspo"].clip_high) == (3e-4, 4e-4)
    assert PRESETS["cispo"].surrogate == "cispo"
    assert (PRESETS["gdpo"].advantage, PRESETS["gdpo"].batch_norm) == ("gdpo", True)
    assert PRESETS["rloo"].baseline == "leave_one_out"
    assert len({*PRESETS.values()}) == len(PRESETS)


def test_presets_need_no_torch() -> None:
    code = "import sys, nat_finetune.algorithms.presets; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
