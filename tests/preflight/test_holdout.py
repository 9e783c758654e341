"""What a run trains on and what it holds out."""

import asyncio
import json
import sys

import pytest

from nat_finetune.compose import compose
from nat_finetune.config.load import load_config
from nat_finetune.config.schema import SplitConfig
from nat_finetune.data.near_duplicates import THRESHOLD
from nat_finetune.errors import ConfigError, DataError
from nat_finetune.preflight import holdout
from nat_finetune.preflight.holdout import load_data, load_held_out
from nat_finetune.registry import Registry
from tests.fixtures import scored_turns

CONFIG = """\
config_version: 1
llms:
  policy: {_type: local, model: builtin:tic-tac-toe, max_tokens: 2}
workflow: {_type: scored_turns, scores: [0.9, 0.5]}
eval:
  general: {dataset: {_type: jsonl, file_path: train.jsonl}}
  evaluators: {right: {_type: exact_match}}
trajectory_builders:
  pairs: {_type: dpo_traj_builder, ttc_step_name: turn}
trainer_adapters:
  here: {_type: local_trainer_adapter, algorithm: {name: dpo}, learning_rate: 1e-4}
trainers:
  once: {_type: preference_trainer}
finetuning:
  {enabled: true, trajectory_builder: pairs, trainer_adapter: here, trainer: once, MORE}
"""
TEST_SET = "test: {dataset: {_type: jsonl, file_path: test.jsonl}}"
STORY = "The harbour pilot noticed at dawn that two of the mooring lines had chafed through and woke the crew."


def write(path, questions, first=0):
    rows = [{"id": place, **({"question": q} if isinstance(q, str) else q)} for place, q in enumerate(questions, start=first)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def load(folder, more, *, kept=None, held_out=None):
    """The data sets of a config in a folder."""
    (folder / "config.yml").write_text(CONFIG.replace("MORE", more), encoding="utf-8")
    registry = Registry.installed()
    registry.add_module(scored_turns, origin="tests")
    config = load_config(folder / "config.yml", registry=registry).config

    async def loaded():
        async with compose(config, registry) as parts:
            return await (load_data(config, parts, kept) if held_out is None else load_held_out(config, parts, held_out, kept))

    return asyncio.run(loaded())


def questions(count, first=0):
    return [f"alpha{i} beta{i} gamma{i} delta{i}" for i in range(first, first + count)]


LEAKS = [
    ([{"question": "x", "task_key": "t"}], [{"question": "y", "task_key": "t"}], "the same task key 't'"),
    (["what is it"], ["what is it"], "the same input"),
    ([STORY], [STORY.replace("dawn", "noon")], "near-duplicates, 0.8"),
    ([STORY], [STORY.upper()], "near-duplicates, 1.00 alike"),
]


@pytest.mark.parametrize(("train", "test", "why"), LEAKS)
def test_a_leak_stops_the_run_and_names_the_pair(tmp_path, train, test, why):
    write(tmp_path / "train.jsonl", [*questions(4), *train])
    write(tmp_path / "test.jsonl", [*questions(4, first=10), *test], first=50)
    with pytest.raises(DataError, match="1 held-out examples leak") as caught:
        load(tmp_path, TEST_SET)
    assert f"4 (eval.general.dataset) and 54 (finetuning.test.dataset): {why}" in str(caught.value)
    data = load(tmp_path, TEST_SET + ", allow_leakage: true")
    assert len(data.leaks) == 1
    assert "allow_leakage: 1 held-out examples leak, such as 4 (eval" in data.warnings[0]


def test_keys_decide_and_so_does_by(tmp_path):
    write(tmp_path / "train.jsonl", [{"question": STORY, "task_key": "a"}])
    write(tmp_path / "test.jsonl", [{"question": STORY.replace("dawn", "noon"), "task_key": "b"}])
    assert load(tmp_path, TEST_SET).leaks == ()
    write(tmp_path / "test.jsonl", [{"question": STORY.replace("dawn", "noon")}])
    assert load(tmp_path, TEST_SET + ", split: {by: task_key}").leaks == ()
    assert load(tmp_path, TEST_SET + ", split: {threshold: 0.95}").leaks == ()


def test_validation_against_test_is_a_leak_too(tmp_path):
    write(tmp_path / "train.jsonl", questions(2))
    write(tmp_path / "test.jsonl", questions(2, first=5))
    both = TEST_SET + ", validation: {dataset: {_type: jsonl, file_path: test.jsonl}}"
    with pytest.raises(DataError, match=r"0 \(finetuning.validation.dataset\) and 0 \(finetuning.test.dataset\)"):
        load(tmp_path, both)


def test_parts_of_one_dataset_with_clusters_kept_whole(tmp_path):
    family = [STORY, STORY.replace("dawn", "noon"), STORY.replace("crew", "cook")]
    write(tmp_path / "train.jsonl", [*questions(37), *family])
    data = load(tmp_path, "split: {validation: 0.2, test: 0.1}")
    assert (len(data.train), len(data.validation), len(data.test)) == (28, 8, 4)
    side = next(side for side in ("train", "validation", "test") if "37" in data.clusters[side])
    assert {data.clusters[side][key] for key in ("37", "38", "39")} == {"37"}  # intervals draw them together
    assert sum(len(set(data.clusters[s].values())) for s in ("train", "validation", "test")) == 38
    assert "28 train, 8 validation, 4 test examples" in data.notes[0]


def test_added_rows_leave_the_others_where_they_were(tmp_path):
    write(tmp_path / "train.jsonl", questions(30))
    first = load(tmp_path, "split: {validation: 0.2, test: 0.2}")
    (tmp_path / "split.json").write_text(json.dumps(first.manifest.to_dict()), encoding="utf-8")
    mine, other = first.train[0], first.test[0]
    bridge = f"{mine.input} {other.input}"
    write(tmp_path / "train.jsonl", [*questions(30), *questions(10, first=90), bridge])
    second = load(tmp_path, "seed: 9, split: {validation: 0.2, test: 0.2, manifest: split.json}")
    for side in ("train", "validation", "test"):
        assert {e.id for e in first.of(side)} <= {e.id for e in second.of(side)}
    (dropped,) = second.dropped
    assert (dropped.reason.value, dropped.example_id) == ("bridges_split", 40)
    assert {f"{mine.id!r}", f"{other.id!r}"} <= set(dropped.detail.replace(",", "").split())
    assert any("40 is left out" in warning for warning in second.warnings)
    assert "30 kept the side that they had; 1 left out" in second.notes[0]


def test_an_evaluation_by_itself_takes_the_same_part(tmp_path):
    write(tmp_path / "train.jsonl", questions(20))
    data = load(tmp_path, "split: {test: 0.3}")
    examples, clusters = load(tmp_path, "split: {test: 0.3}", kept=data.manifest, held_out="test")
    assert (examples, dict(clusters)) == (data.test, dict(data.clusters["test"]))
    write(tmp_path / "test.jsonl", [STORY, STORY.replace("dawn", "noon"), "other"])
    assert list(load(tmp_path, TEST_SET, held_out="test")[1].values()) == ["0", "0", "2"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("split: {test: 0.2}, " + TEST_SET, "test has both a dataset and a share of the split"),
        ("test: {generations: 2}", "test has no dataset and no share of the split"),
        ("split: {validation: 0.6, test: 0.4}", "leave nothing to train on"),
        ("split: {test: 1.5}", "less than 1"),
        ("split: {test: 0.2, by: task_key, threshold: 0.4}", "threshold would be ignored"),
        ("split: {manifest: split.json}", "manifest would be ignored"),
    ],
)
def test_configs_that_can_not_be_meant(tmp_path, more, message):
    write(tmp_path / "train.jsonl", questions(9))
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, more)
    assert message in str(caught.value)


def test_a_share_that_leaves_nothing_is_said(tmp_path):
    write(tmp_path / "train.jsonl", questions(4))
    with pytest.raises(DataError, match=r"finetuning.split.test: 0.1 of 4 examples leaves none"):
        load(tmp_path, "split: {test: 0.1}")


def test_without_datasketch(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasketch", None)
    monkeypatch.setattr(holdout, "find_spec", lambda name: None)
    write(tmp_path / "train.jsonl", [STORY])
    write(tmp_path / "test.jsonl", [STORY.replace("dawn", "noon")])
    data = load(tmp_path, TEST_SET)
    assert "near-duplicates between training and held-out examples were not looked for" in data.warnings[0]
    with pytest.raises(ConfigError, match=r"nat-finetune\[splits\]"):
        load(tmp_path, TEST_SET + ", split: {threshold: 0.6}")


def test_the_default_threshold_is_one_number():
    assert SplitConfig().threshold == THRESHOLD
