"""What a run's report says its preference pairs were."""

from __future__ import annotations

import asyncio
import json

import pytest
from rich.console import Console

from nat_finetune.cli.progress import PlainProgress
from nat_finetune.config.load import load_config
from nat_finetune.errors import NoTrainableSignal
from nat_finetune.finetune import finetune, new_run
from nat_finetune.registry import Registry
from tests.fixtures import scored_turns

CONFIG = """\
config_version: 1
llms:
  policy: {_type: local, model: builtin:tic-tac-toe, max_tokens: 2}
workflow: {_type: scored_turns, scores: [SCORES]}
eval:
  general: {dataset: {_type: jsonl, file_path: turns.jsonl}}
trajectory_builders:
  pairs: {_type: dpo_traj_builder, ttc_step_name: turn}
trainer_adapters:
  here: {_type: local_trainer_adapter, algorithm: {name: dpo}, learning_rate: 1e-4, batch_size: 256}
trainers:
  once: {_type: preference_trainer}
finetuning: {enabled: true, trajectory_builder: pairs, trainer_adapter: here, trainer: once}
"""


def run(folder, *, turns, scores):
    """The report of a run over so many turns, and its folder."""
    rows = [{"id": turn, "question": f"turn {turn}", "answer": ""} for turn in range(turns)]
    (folder / "turns.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "config.yml").write_text(CONFIG.replace("SCORES", scores), encoding="utf-8")
    registry = Registry.installed()
    registry.add_module(scored_turns, origin="tests")
    loaded = load_config(folder / "config.yml", registry=registry)
    store = new_run(loaded, folder / "runs")
    asyncio.run(finetune(loaded, registry, store, PlainProgress(Console(quiet=True))))
    return json.loads((store.folder / "report.json").read_text(encoding="utf-8")), store.folder


def test_500_turns_of_three_candidates_are_no_human_judgment(tmp_path):
    report, folder = run(tmp_path, turns=500, scores="0.9, 0.7, 0.5")
    sentence = "1,500 pairs from 500 candidate sets of 1,500 scored candidates, and 0 human judgments"
    assert sentence in report["account"]
    assert f"<li>{sentence}</li>" in (folder / "report.html").read_text(encoding="utf-8")
    assert "500 contexts, 1,500 observations; each candidate set weighs the same" in "\n".join(report["account"])


def test_what_was_dropped_is_listed_with_where_it_came_from(tmp_path):
    report, folder = run(tmp_path, turns=2, scores="0.9, 0.9, 0.5, null")
    listed = [json.loads(line) for line in (folder / "dropped.jsonl").read_text(encoding="utf-8").splitlines()]
    counted = {(row["what"], row["reason"]): row["count"] for row in report["dropped"]}
    assert counted == {("candidate", "no_score"): 2, ("pair", "tie"): 2}
    assert sorted((row["what"], row["reason"], row["example_id"], row["detail"]) for row in listed) == [
        ("candidate", "no_score", 0, "turn 0: candidate 3"),
        ("candidate", "no_score", 1, "turn 0: candidate 3"),
        ("pair", "tie", 0, "turn 0: candidate 0 over 1"),
        ("pair", "tie", 1, "turn 0: candidate 0 over 1"),
    ]
    assert {row["step"] for row in listed} == {0}
    assert all(row["rollout_id"] for row in listed)


def test_dropped_work_is_listed_also_where_nothing_is_left(tmp_path):
    with pytest.raises(NoTrainableSignal):
        run(tmp_path, turns=2, scores="0.5, 0.5")
    (folder,) = (tmp_path / "runs").iterdir()
    assert len((folder / "dropped.jsonl").read_text(encoding="utf-8").splitlines()) == 2
