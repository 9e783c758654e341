"""The speed benchmark runs, does the work that it says, and its figures fit together. What they are is no test's business."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tests.source_tree import ROOT

SPEED = ROOT / "benchmarks" / "speed"
MODULES = [path.stem for path in SPEED.glob("*.py")]
TRL = os.environ.get("NAT_FINETUNE_TRL_PYTHON")


@pytest.fixture
def script(monkeypatch):
    """The scripts import one another by bare names, as they do when they are run."""
    monkeypatch.syspath_prepend(str(SPEED))
    yield importlib.import_module
    for name in MODULES:
        sys.modules.pop(name, None)  # other benchmarks have modules of these names


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    """A cache in whose place for the tiny model a much smaller one lies."""
    folder = tmp_path_factory.mktemp("cache")
    sys.path.insert(0, str(SPEED))
    try:
        importlib.import_module("workload").save_tokenizer(folder / "tiny")
    finally:
        sys.path.remove(str(SPEED))
        sys.modules.pop("workload", None)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=1024, max_position_embeddings=1024, bos_token_id=1, eos_token_id=2, pad_token_id=0, **shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder / "tiny")
    return folder


@pytest.fixture
def job(script, cache):
    def make(work, **changed):
        file = script("workload").work_for(cache / "tiny", cache)
        given = {"work": work, "model": str(cache / "tiny"), "mode": "lora", "steps": 1, "units": 1, "threads": 1}
        return script("protocol").Job(**given, work_file=str(file), **changed)

    return make


def test_the_work_is_the_one_that_was_measured_first(script, cache):
    work = script("workload").make_work(AutoTokenizer.from_pretrained(cache / "tiny"))
    ids = [[row[name] for name in ("prompt_ids", "chosen_ids", "rejected_ids")] for row in work["dpo"]]
    ids += [row["prompt_ids"] for row in work["grpo"]]
    assert hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:16] == "26ffc2c2a721f0c1"
    assert [len(row["prompt_ids"]) for row in work["agent"]] == [512, 512]
    assert len(work["load"]) == 32
    assert all(len(row["tokens"]) == 4 and len(row["observations"]) == 3 for row in work["load"])


@pytest.mark.parametrize("work", ["dpo", "grpo", "agent", "load"])
async def test_a_unit_of_the_product_does_the_work(script, job, tmp_path, work):
    product, units = script("product"), []

    async def body(made):
        units.append(await {"dpo": made.dpo, "load": made.load}.get(work, made.grpo)())

    asked = job(work)
    await product.composed(asked, tmp_path, body)
    (unit,) = units
    assert 0 < unit["step"]["wall"] < 120
    if work == "dpo":
        rows = asked.data()[:8]
        assert unit["trained"] == sum(len(row["chosen_ids"]) + len(row["rejected_ids"]) - 2 for row in rows)
        assert unit["losses"] == pytest.approx([0.693147], abs=1e-5)
        assert unit["optimising"]["wall"] < unit["step"]["wall"]
        return
    asked_for = sum(sum(row.get("tokens", [])) for row in asked.data())
    most = {"grpo": 8 * 4 * 32, "agent": 2 * 8 * 4 * 24, "load": asked_for}[work]
    assert 0.8 * most < unit["sampled"] <= most
    if work != "load":
        assert unit["trained"] <= unit["sampled"]
        assert unit["generation"]["wall"] + unit["update"]["wall"] <= unit["step"]["wall"] + 1e-3


def test_the_floor_is_what_a_hand_counts(script, job):
    floor = script("floor")
    shape = floor.Shape.of(job("dpo").model, "float32")
    layer = 4 * 32 * 32 + 3 * 32 * 48
    assert (shape.weights, shape.head, shape.kv) == (2 * layer, 32 * 1024, 2 * 2 * 32)
    pairs = job("dpo").data()[:8]
    read = attended = logits = 0.0
    for pair in pairs:
        prompt, ends = len(pair["prompt_ids"]), [len(pair["chosen_ids"]) - 1, len(pair["rejected_ids"]) - 1]
        read, logits = read + prompt + sum(ends), logits + sum(ends)
        attended += prompt**2 / 2 + sum(end * prompt + end**2 / 2 for end in ends)
    forward = 2 * 2 * layer * read + 4 * 32 * 2 * attended + 2 * 32 * 1024 * logits
    assert floor.need(job("dpo")).update == pytest.approx(3 * forward)  # forward, backward, and the reference's forward
    rates = floor.Rates(matmul=1e9, bandwidth=1e9)
    times = floor.need(job("grpo")).seconds(rates)
    assert times["step"] == pytest.approx(times["update"] + times["generation"])
    assert all(floor.need(job(work)).seconds(rates)["generation"] > 0 for work in ("grpo", "agent", "load"))


def machine(*, disturbed=False):
    return {"machine": {"load": 0.1, "others": 0.0, "steal": 0.0, "disturbed": disturbed}}


def pair(ours, theirs, sampled=(100, 100), **more):
    def side(seconds, tokens, **extra):
        parts = {part: {"wall": seconds * share, "cpu": seconds} for part, share in (("step", 1), ("update", 0.6))}
        parts["generation"] = {"wall": seconds * 0.4, "cpu": seconds}
        return {**parts, "sampled": tokens, "peak_gib": seconds, "losses": [], **extra, **machine(**more)}

    sides = {"product": side(ours, sampled[0], trained=50, optimising={"wall": ours / 2}), "peer": side(theirs, sampled[1])}
    return {"kind": "pair", "case": "tiny grpo lora", "threads": 2, "steps": 1, **sides}


def written(folder, script, lines, page=None):
    log = folder / "log.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"kind": "pair", "cut')
    if page is not None:
        (folder / "R.md").write_text(page)
    script("results").write(log, folder / "R.md", folder / "r.json")
    return json.loads((folder / "r.json").read_text())["cases"], (folder / "R.md").read_text()


def test_ratios_are_medians_of_pairs_for_each_token(script, tmp_path):
    lines = [pair(1.0, 2.0), pair(2.0, 8.0, sampled=(50, 100)), pair(1.0, 3.0, disturbed=True)]
    (case,), page = written(tmp_path, script, lines)
    assert case["ratios"]["step"]["wall"] == pytest.approx(2.0)  # of 2, 8/2 · 50/100 and 3
    assert case["ratios"]["optimising"]["wall"] == pytest.approx(0.6 * 2 * 2)
    assert (case["pairs"], case["disturbed"]) == (3, 1)
    assert "**1 of 3 pairs were disturbed**" in page
    assert "| tiny grpo lora | step | 1.00 (1.00) | 3.00 (3.00) | **2.00** (2.00) | 3 ✗ |" in page


def test_the_table_stays_between_its_markers(script, tmp_path):
    begin, end = "<!-- speed: begin -->", "<!-- speed: end -->"
    page = f"before\n{begin}\nold\n{end}\nafter\n"
    _, first = written(tmp_path, script, [pair(1.0, 4.0)], page)
    _, second = written(tmp_path, script, [pair(1.0, 4.0)])
    assert first == second
    assert first.startswith("before\n")
    assert first.endswith(f"{end}\nafter\n")
    assert "old" not in first
    assert "The machine was quiet throughout." in first
    with pytest.raises(SystemExit, match="has no lines"):
        written(tmp_path, script, [pair(1.0, 4.0)], "a page without markers")


def run(cache, folder, *options):
    files = [
        "--cache",
        str(cache),
        "--log",
        str(folder / "log"),
        "--results",
        str(folder / "R.md"),
        "--json",
        str(folder / "r.json"),
    ]
    command = [sys.executable, str(SPEED / "run.py"), "--models", "tiny", "--modes", "lora", "--threads", "1", *files, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (folder / "log").read_text().splitlines()] if (folder / "log").exists() else []
    return done.stdout, lines


def test_the_command_measures_goes_on_and_stops_in_time(cache, tmp_path):
    options = ["--only", "grpo", "--without-peer", "--pairs"]
    said, lines = run(cache, tmp_path, *options, "1", "--time-limit", "0.001")
    assert "the time limit is reached" in said
    assert [line for line in lines if line["kind"] == "pair"] == []
    said, lines = run(cache, tmp_path, *options, "2")
    assert [line["pair"] for line in lines if line["kind"] == "pair"] == [0, 1]
    assert "| tiny grpo lora | step |" in said
    again, more = run(cache, tmp_path, *options, "2")
    assert "tiny grpo lora: 2 pairs are there" in again
    assert more == lines


@pytest.mark.slow
def test_the_gpu_script_runs_dry(tmp_path):
    command = [sys.executable, str(SPEED / "gpu.py"), "--dry-run", "--peer", "", "--output", str(tmp_path / "gpu.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["left_out"] == []
    assert [(case["work"], case["mode"]) for case in found["cases"]] == [
        ("grpo", "lora"), ("dpo", "lora"), ("load", "lora"), ("agent", "lora"), ("grpo", "full"),
    ]  # fmt: skip
    for case in found["cases"]:
        assert all(value > 0 for value in case["share"].values())


@pytest.mark.peer
@pytest.mark.skipif(TRL is None, reason="NAT_FINETUNE_TRL_PYTHON names no Python with trl")
@pytest.mark.parametrize("work", ["dpo", "grpo", "agent", "load"])
def test_both_sides_do_the_same(cache, tmp_path, work):
    _, lines = run(cache, tmp_path, "--only", work, "--pairs", "1", "--steps", "1", "--peer", str(TRL))
    (measured,) = [line for line in lines if line["kind"] == "pair"]
    if work == "dpo":
        assert measured["product"]["losses"] == pytest.approx(measured["peer"]["losses"], abs=2e-6)
    else:
        assert 0.8 * measured["peer"]["sampled"] < measured["product"]["sampled"] <= measured["peer"]["sampled"]
    for check in [line for line in lines if line["kind"] == "check"]:
        assert check["difference"] <= 2e-6
        for ours, theirs in check["equal"].values():
            assert ours == pytest.approx(theirs, rel=1e-3, abs=2e-6)
