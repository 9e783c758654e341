"""`nat-finetune gate`: promotes what is better, and nothing else."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from nat_finetune.cli.main import main
from nat_finetune.data.intervals import estimate
from nat_finetune.errors import ConfigError, GateFailed
from nat_finetune.runstore import RunStore
from nat_finetune.types import EvalResult, PolicyRef

KEYS = [f"e{i}" for i in range(20)]
LOW = {key: 0.2 + 0.01 * (i % 5) for i, key in enumerate(KEYS)}
HIGH = {key: value + 0.3 + 0.02 * (i % 3) for i, (key, value) in enumerate(LOW.items())}


def run_folder(path, *, before, after):
    store = RunStore.create(path)
    store.write_json("run.json", {"run_id": path.name})
    for name, scores in (("test-before", before), ("test-after", after)):
        if scores is not None:
            clusters = {key: key for key in scores}
            metrics = {"outcome": estimate(scores, clusters, seed=0)}
            store.save_evaluation(name, EvalResult("test", PolicyRef("p", 0), {"outcome": scores}, clusters, metrics, 0.0))
    return path


@pytest.fixture
def better(tmp_path):
    return run_folder(tmp_path / "better", before=LOW, after=HIGH)


@pytest.fixture
def base(tmp_path):
    return run_folder(tmp_path / "base", before=LOW, after=LOW)


def gate(*arguments):
    return main(["gate", *map(str, arguments), "--metric", "outcome"])


def test_a_better_model_passes(better, base, capsys):
    assert gate(better, "--baseline", base) == 0
    assert "gate: passed" in capsys.readouterr().out


def test_without_a_baseline_the_base_model_is_the_one_to_beat(better, base):
    assert gate(better) == 0
    assert gate(base) == GateFailed.exit_code


def test_an_equal_model_is_no_gain_but_not_much_worse(base, better):
    assert gate(base, "--baseline", base) == GateFailed.exit_code
    assert gate(base, "--baseline", base, "--min-gain", "-0.01") == 0
    assert gate(base, "--baseline", better, "--min-gain", "-0.01") == GateFailed.exit_code


def test_the_gain_is_held_against_its_lower_bound(better, base, capsys):
    assert gate(better, "--baseline", base, "--json") == 0
    gain = json.loads(capsys.readouterr().out)["gain"]
    assert gain["mean"] == pytest.approx(sum(HIGH[k] - LOW[k] for k in KEYS) / len(KEYS))
    just_below, just_above = gain["low"] - 1e-6, gain["low"] + 1e-6
    assert gate(better, "--baseline", base, "--min-gain", just_below) == 0
    assert gate(better, "--baseline", base, "--min-gain", just_above) == GateFailed.exit_code
    assert gain["low"] < just_above < gain["mean"]


def test_a_floor_on_the_metric_itself(better, capsys):
    assert gate(better, "--min-value", "0.4") == 0
    assert gate(better, "--min-value", "0.9") == GateFailed.exit_code
    assert "lower bound must be at least 0.9" in capsys.readouterr().err


def test_other_examples_are_refused(better, tmp_path, capsys):
    other = run_folder(tmp_path / "other", before=None, after={**{k: v for k, v in LOW.items() if k != "e3"}, "new": 0.5})
    assert gate(better, "--baseline", other) == ConfigError.exit_code
    message = capsys.readouterr().err
    assert "same test examples" in message
    assert "e3" in message
    assert "new" in message


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "no run folder"),
        (["unfinished"], "--resume"),
        (["better", "--confidence", "1.5"], "between 0 and 1"),
    ],
)
def test_what_can_not_be_judged_is_refused(arguments, said, better, tmp_path, monkeypatch, capsys):
    run_folder(tmp_path / "unfinished", before=LOW, after=None)
    monkeypatch.chdir(tmp_path)
    assert gate(*arguments) == ConfigError.exit_code
    assert said in capsys.readouterr().err


def test_without_a_metric_the_primary_one_decides(better):
    assert main(["gate", str(better)]) == 0


def test_an_unknown_metric_names_those_that_there_are(better, capsys):
    assert main(["gate", str(better), "--metric", "outcom"]) == ConfigError.exit_code
    assert "there are: outcome" in capsys.readouterr().err


def test_junit(base, tmp_path):
    report = tmp_path / "gate.xml"
    assert gate(base, "--junit", report) == GateFailed.exit_code
    suite = ElementTree.fromstring(report.read_text(encoding="utf-8"))
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")
    assert "lower bound" in suite.find("testcase/failure").get("message")
    assert gate(base, "--junit", Path(tmp_path / "none" / "gate.xml")) == 8


@pytest.mark.parametrize("option", ["--min-gain", "--min-value"])
@pytest.mark.parametrize("bound", ["nan", "inf"])
def test_a_bound_that_nothing_compares_with_lets_nothing_through(option, bound, better, capsys):
    assert gate(better, option, bound) == ConfigError.exit_code
    assert f"Invalid value for '{option}': expected a finite number" in capsys.readouterr().err
