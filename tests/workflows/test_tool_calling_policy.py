"""The shipped policy, loaded by plain transformers: knows every word, keeps each rule sometimes, is right sometimes."""

from __future__ import annotations

import hashlib
import json
import re
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from statistics import fmean, stdev

import pytest
import torch
from nat_finetune_workflows.tool_calling import build_policy
from nat_finetune_workflows.tool_calling.answers import canonical_text, is_well_formed, read_call
from nat_finetune_workflows.tool_calling.make_data import wordings
from nat_finetune_workflows.tool_calling.prompts import messages
from nat_finetune_workflows.tool_calling.rewards import correctness
from nat_finetune_workflows.tool_calling.tools import Call, all_calls
from transformers import AutoModelForCausalLM, AutoTokenizer

HOME = Path(str(files("nat_finetune_workflows.tool_calling")))
FOLDER = HOME / "policy"
EACH = 8


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER)


def prompt_ids(tokenizer, request: str) -> list[int]:
    return tokenizer.apply_chat_template(messages(request, "tiny"), add_generation_prompt=True, return_dict=True)["input_ids"]


@pytest.fixture(scope="module")
def graded(tokenizer):
    """(example, form, content from 0 to 1) of eight answers to each test request, sampled token by token."""
    model = AutoModelForCausalLM.from_pretrained(FOLDER).eval()
    rows = [json.loads(line) for line in (HOME / "data" / "test.jsonl").read_text(encoding="utf-8").splitlines()]
    draw = torch.Generator().manual_seed(1)
    found = []
    for length, same in groupby(
        sorted(rows, key=lambda row: len(row["question"].split())), lambda r: len(r["question"].split())
    ):
        asked = [row for row in same for _ in range(EACH)]
        ids_B_T = torch.tensor([prompt_ids(tokenizer, row["question"]) for row in asked])
        assert ids_B_T.shape[1] == length + 2
        for _ in range(24):
            with torch.no_grad():
                probs_B_V = model(ids_B_T, logits_to_keep=1).logits[:, -1].softmax(-1)
            ids_B_T = torch.cat([ids_B_T, torch.multinomial(probs_B_V, 1, generator=draw)], dim=1)
        for row, ids in zip(asked, ids_B_T[:, length + 2 :].tolist(), strict=True):
            end = ids.index(tokenizer.eos_token_id) if tokenizer.eos_token_id in ids else len(ids)
            text = tokenizer.decode(ids[:end])
            found.append((row["id"], float(is_well_formed(text)), correctness(read_call(text), Call.from_json(row["answer"]))))
    return found


def test_it_is_small():
    assert sum(path.stat().st_size for path in FOLDER.iterdir() if path.is_file()) <= 3 * 2**20


def test_the_readme_names_the_bits():
    named = dict(re.findall(r"^\| `([\w.]+)` \| `([0-9a-f]{64})` \|$", (FOLDER / "README.md").read_text(), flags=re.MULTILINE))
    assert named == {name: hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() for name in named}
    assert {"model.safetensors", "tokenizer.json", "config.json", "chat_template.jinja"} <= named.keys()


def test_no_request_and_no_best_answer_has_an_unknown_word(tokenizer):
    for call in all_calls():
        for request in wordings(call):
            ids = prompt_ids(tokenizer, request)
            assert tokenizer.unk_token_id not in ids
            assert tokenizer.decode(ids) == f"<user> {request} <assistant>", "what the policy was taught with"
        ids = tokenizer.encode(canonical_text(call))
        assert tokenizer.unk_token_id not in ids
        assert read_call(tokenizer.decode(ids)) == call
        assert len(ids) + 1 <= 16
    assert len({tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id}) == 3


def test_form_is_kept_sometimes_and_content_is_right_rarely(graded):
    form, content = [form for _, form, _ in graded], [content for _, _, content in graded]
    assert 0.27 < fmean(form) < 0.34
    assert 0.33 < fmean(content) < 0.41  # -1.0 to -0.5 from -3 to 3
    assert 0.01 < fmean(value == 1.0 for value in content) < 0.12
    assert fmean(f == 1.0 and c == 1.0 for f, c in zip(form, content, strict=True)) < 0.04


def test_both_rewards_differ_inside_groups_and_neither_gives_the_other_away(graded):
    groups = [list(members) for _, members in groupby(sorted(graded), lambda each: each[0])]
    pairs = []
    for members in groups:
        forms, contents = [m[1] for m in members], [m[2] for m in members]
        pairs += [(f - fmean(forms), c - fmean(contents)) for f, c in zip(forms, contents, strict=True)]
    assert fmean(len({m[1] for m in members}) > 1 for members in groups) > 0.85
    assert fmean(len({m[2] for m in members}) > 1 for members in groups) > 0.95
    deviations = stdev(f for f, _ in pairs) * stdev(c for _, c in pairs)
    assert abs(sum(f * c for f, c in pairs) / len(pairs) / deviations) < 0.3


def test_the_script_makes_the_shipped_tokenizer(tmp_path):
    build_policy.make_tokenizer().save_pretrained(tmp_path)
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()


@pytest.mark.slow
def test_the_script_makes_the_shipped_weights(tmp_path):
    """To within rounding, which differs between processors; on the one that built it the files are equal."""
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        build_policy.main(tmp_path)
    finally:
        torch.use_deterministic_algorithms(was_deterministic)
    rebuilt, shipped = (AutoModelForCausalLM.from_pretrained(folder).state_dict() for folder in (tmp_path, FOLDER))
    assert rebuilt.keys() == shipped.keys()
    for name in shipped:
        torch.testing.assert_close(rebuilt[name], shipped[name], atol=1e-2, rtol=0)
