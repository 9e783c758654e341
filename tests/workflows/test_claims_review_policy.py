"""The shipped policy, loaded from its folder by plain transformers: knows the forms, knows nothing of claims."""

from __future__ import annotations

import hashlib
import json
import math
import re
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from nat_finetune_workflows.claims_review import build_policy, drafts, sandbox
from nat_finetune_workflows.claims_review.claims import parse_claim
from nat_finetune_workflows.claims_review.prompts import explain_messages, plan_messages, plan_text
from transformers import AutoModelForCausalLM, AutoTokenizer

FOLDER = Path(str(files("nat_finetune_workflows.claims_review.policy")))
DATA = files("nat_finetune_workflows.claims_review") / "data"
LINES = (DATA / "claims_validation.jsonl").read_text(encoding="utf-8").splitlines()
CLAIMS = [parse_claim(json.loads(line)["question"]) for line in LINES][:60]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(FOLDER).eval()


def probabilities(model, tokenizer, messages, texts: list[str]) -> list[float]:
    """Of each text with the end of the turn after it."""
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    answers = [[*tokenizer.encode(text), tokenizer.eos_token_id] for text in texts]
    longest = max(map(len, answers))
    rows = torch.tensor([[*prompt, *answer, *[tokenizer.pad_token_id] * (longest - len(answer))] for answer in answers])
    with torch.no_grad():
        logprobs = model(rows).logits[:, len(prompt) - 1 : -1].log_softmax(-1)
    return [math.exp(sum(logprobs[row, at, token].item() for at, token in enumerate(a))) for row, a in enumerate(answers)]


def evenness(chances: list[float]) -> float:
    """Entropy relative to that of equal chances."""
    total = sum(chances)
    return -sum(p / total * math.log(p / total) for p in chances) / math.log(len(chances))


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def test_it_is_small():
    assert sum(path.stat().st_size for path in FOLDER.iterdir() if path.is_file()) <= 3 * 2**20


def test_the_readme_names_the_bits():
    named = dict(re.findall(r"^\| `([\w.]+)` \| `([0-9a-f]{64})` \|$", (FOLDER / "README.md").read_text(), flags=re.MULTILINE))
    assert named == {name: hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() for name in named}
    assert {"model.safetensors", "tokenizer.json", "config.json", "chat_template.jinja"} <= named.keys()


def test_it_reads_every_record_without_an_unknown_word_and_gives_texts_back(tokenizer):
    for split in ("train", "validation", "test"):
        rows = [json.loads(line) for line in (DATA / f"reviews_{split}.jsonl").read_text(encoding="utf-8").splitlines()]
        texts = list({row[side][0]["content"] for row in rows for side in ("chosen", "rejected")})
        prompts = list({row["prompt"][0]["content"] for row in rows})
        assert all(tokenizer.unk_token_id not in ids for ids in tokenizer([*texts, *prompts])["input_ids"])
        assert tokenizer.batch_decode(tokenizer(texts)["input_ids"]) == texts
    assert len({tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id}) == 3


def test_prompts_are_short_and_of_one_length(tokenizer):
    ids = [
        tokenizer.apply_chat_template(plan_messages(c, "tiny"), add_generation_prompt=True, return_dict=False) for c in CLAIMS
    ]
    assert {len(row) for row in ids} == {12}
    claim = CLAIMS[0]
    found = [sandbox.run_plan(claim, plan) for plan in sandbox.PLANS]
    shown = [
        tokenizer.apply_chat_template(explain_messages(claim, each, "tiny"), add_generation_prompt=True, return_dict=False)
        for each in found
    ]
    assert {len(row) for row in shown} == {27}
    assert tokenizer.decode(ids[0]).startswith("<user> Plan: ")


def test_it_plans_at_random(model, tokenizer):
    texts = [plan_text(plan) for plan in sandbox.PLANS]
    rows = [probabilities(model, tokenizer, plan_messages(claim, "tiny"), texts) for claim in CLAIMS]
    assert mean([sum(row) for row in rows]) > 0.98
    assert mean([evenness(row) for row in rows]) > 0.99


def test_it_writes_unfit_drafts_as_often_as_fit_ones(model, tokenizer):
    total, even, rubric, chance = [], [], [], []
    for claim in CLAIMS:
        found = sandbox.run_plan(claim, sandbox.best_plan(claim))
        written = drafts.writable_drafts(found)
        row = probabilities(model, tokenizer, explain_messages(claim, found, "tiny"), list(map(str, written)))
        total.append(sum(row))
        even.append(evenness(row))
        rubric.append(sum(p * drafts.rubric(claim, draft) for p, draft in zip(row, written, strict=True)))
        chance.append(mean([drafts.rubric(claim, draft) for draft in written]))
    assert mean(total) > 0.97
    assert mean(even) > 0.99
    assert mean(rubric) == pytest.approx(mean(chance), abs=0.02)


def test_the_script_makes_the_shipped_tokenizer(tmp_path):
    build_policy.make_tokenizer().save_pretrained(tmp_path)
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()


@pytest.mark.slow
def test_the_script_makes_the_shipped_weights(tmp_path):
    """To within rounding, which differs between processors; on the one that built it the files are equal."""
    torch_was_deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        build_policy.main(tmp_path)
    finally:
        torch.use_deterministic_algorithms(torch_was_deterministic)
    rebuilt, shipped = (AutoModelForCausalLM.from_pretrained(folder).state_dict() for folder in (tmp_path, FOLDER))
    assert rebuilt.keys() == shipped.keys()
    for name in shipped:
        torch.testing.assert_close(rebuilt[name], shipped[name], atol=1e-2, rtol=0)
