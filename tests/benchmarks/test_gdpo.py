"""The GDPO experiment: its configs are what its arms say, and its figures are counted as it says."""

from __future__ import annotations

import importlib
import json
import sys

import pytest

from nat_finetune.config.fit import check_fit
from nat_finetune.config.load import load_config
from nat_finetune.registry import Registry
from tests.source_tree import ROOT


@pytest.fixture
def script(monkeypatch):
    """The scripts import one another by bare names, as they do when they are run."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "gdpo"))
    yield importlib.import_module
    for name in ("experiment", "curves", "results"):
        sys.modules.pop(name, None)  # other benchmarks have modules of these names


@pytest.mark.parametrize("part", ["tune", "main", "length", "no_habit"])
def test_arms_differ_in_what_they_name_and_nothing_else(script, part):
    experiment = script("experiment")
    registry = Registry.installed()
    shapes = {}
    for arm in experiment.LENGTH_ARMS if part == "length" else experiment.ARMS:
        job = experiment.Job(part, arm, 5, 1e-3)
        config = load_config(
            experiment.HERE / "experiment.yml", job.overrides("builtin:tool-calling"), registry=registry
        ).config
        check_fit(config)
        rewards = {r.name: (round(r.weight * 6), r.condition is not None) for r in config.finetuning.rewards}
        algorithm = config.trainer_adapters["here"].algorithm.preset()
        shapes[arm] = (algorithm.advantage, algorithm.batch_norm, rewards)
        assert (config.finetuning.seed, config.trainer_adapters["here"].learning_rate) == (5, 1e-3)
        wide = config.finetuning.model_dump(exclude={"reward_functions", "test"})
        assert shapes.setdefault("rest", wide) == wide
    del shapes["rest"]
    if part == "length":
        assert {arm: shape[2]["short"] for arm, shape in shapes.items()} == {
            arm: (6, arm.endswith("conditioned")) for arm in experiment.LENGTH_ARMS
        }
        return
    both = {"format": (6, False), "correctness": (6, False)}
    assert shapes == {
        "grpo": ("return", False, both),
        "grpo_batch_norm": ("return", True, both),
        "grpo_equal_range": ("return", False, {**both, "correctness": (1, False)}),
        "gdpo": ("gdpo", True, both),
    }


@pytest.mark.parametrize(
    ("curve", "updates"),
    [
        ([0.8, 0.8, 0.8, 0.1], 2),
        ([0.1, 1.0, 1.0, 0.3, 0.3], 5 + 1),
        ([0.1, 0.7, 0.8, 0.9], 3),
        ([0.1] * 42, 43),
    ],
)
def test_when_format_passes(script, curve, updates):
    assert script("results").passes_at(curve) == updates


def rows(arm: str, offset: float) -> list[dict]:
    names = ("format", "correctness", "exact_call", "short")
    return [
        {
            **{"experiment": "main", "arm": arm, "seed": seed, "learning_rate": 1e-3, "cpu_seconds": 1.0, "commit": "abc"},
            "test": {name: {"before": 0.3, "after": 0.5 + offset + 0.01 * seed} for name in names},
            "curves": {"format": [0.9] * 4, "correctness": [1.0] * 4},
            "advantage_share": [{"format": 0.25, "correctness": 0.75}],
        }
        for seed in range(1, 11)
    ]


def test_differences_are_paired_by_seed_and_said_as_they_are(script):
    results = script("results")
    data = results.collect([*rows("grpo", 0.0), *rows("gdpo", -0.1)])
    (row,) = data["main"]["differences"]
    assert (row["arm"], row["minus"]) == ("gdpo", "grpo")
    for side in ("mean", "low", "high"):
        assert row["format"][side] == pytest.approx(-0.1)
    assert row["format"]["higher_in"] == 0
    assert "format: worse (-0.100)" in results.verdict(row)
    assert "updates until format ≥ 0.8: no difference" in results.verdict(row)
    assert "| `gdpo` | 10 | 0.001 |" in results.page(data)
    json.dumps(data, allow_nan=False)
