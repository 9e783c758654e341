"""The shipped claims and reviewer records: what they say, what splits share, and that the script writes them again."""

from __future__ import annotations

import json
from collections import Counter
from importlib import resources
from itertools import combinations
from random import Random

import pytest
from nat_finetune_workflows.claims_review import make_data
from nat_finetune_workflows.claims_review.annotators import AnnotatorModel, Reviewer, true_worth, utility
from nat_finetune_workflows.claims_review.claims import Decision, parse_claim
from nat_finetune_workflows.claims_review.drafts import Draft, fit_draft, parse_draft, rubric, writable_drafts
from nat_finetune_workflows.claims_review.prompts import EXAMPLES, explain_messages
from nat_finetune_workflows.claims_review.sandbox import best_plan, run_plan

DATA = resources.files("nat_finetune_workflows.claims_review") / "data"
SPLITS = ("train", "validation", "test")
FILES = [f"{kind}_{split}.jsonl" for kind in ("claims", "reviews") for split in SPLITS]


def rows(file: str) -> list[dict]:
    return [json.loads(line) for line in (DATA / file).read_text(encoding="utf-8").splitlines()]


def records():
    """Every reviewer record: reviewer, claim, chosen and rejected draft."""
    for split in SPLITS:
        for row in rows(f"reviews_{split}.jsonl"):
            claim = parse_claim(" ".join(row["prompt"][-1]["content"].split()[1:9]))
            chosen, rejected = (parse_draft(row[side][0]["content"]) for side in ("chosen", "rejected"))
            yield row, claim, chosen, rejected


def test_the_script_writes_the_shipped_files(tmp_path):
    make_data.main(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(FILES)
    for file in FILES:
        assert (tmp_path / file).read_text(encoding="utf-8") == (DATA / file).read_text(encoding="utf-8"), file


def test_claims_have_their_right_drafts():
    for split in SPLITS:
        for row in rows(f"claims_{split}.jsonl"):
            claim = parse_claim(row["question"])
            assert row["answer"] == str(fit_draft(claim))
            assert row["task_key"] == make_data.task_key(claim)


def test_splits_share_no_task_and_are_large_enough():
    keys = {
        split: {row["task_key"] for kind in ("claims", "reviews") for row in rows(f"{kind}_{split}.jsonl")} for split in SPLITS
    }
    for one, two in combinations(SPLITS, 2):
        assert not keys[one] & keys[two], (one, two)
    assert {split: len(found) for split, found in keys.items()} == make_data.SIZES
    assert sum(len(rows(f"reviews_{split}.jsonl")) for split in SPLITS) == 6000


def test_kinds_of_claims_come_in_their_shares():
    for split, count in make_data.SIZES.items():
        kinds = Counter(make_data.kind(parse_claim(row["question"])) for row in rows(f"claims_{split}.jsonl"))
        assert kinds == {kind: count * share for kind, share in make_data.SHARES.items()}


def test_records_show_the_writers_prompt_and_two_drafts():
    judged = Counter()
    for row, claim, chosen, rejected in records():
        assert row["prompt"] == explain_messages(claim, run_plan(claim, best_plan(claim)), "tiny")
        assert chosen is not None
        assert rejected is not None
        assert chosen != rejected
        judged[row["task_key"]] += 1
    assert set(judged.values()) == {make_data.REVIEWS}


def test_drafts_are_no_fitter_than_the_shipped_policys():
    """Else imitating either side would pay, and labels by coin toss would teach something."""
    shown = evenly = 0.0
    for _, claim, chosen, rejected in records():
        written = writable_drafts(run_plan(claim, best_plan(claim)))
        assert {chosen, rejected} <= set(written)
        shown += (rubric(claim, chosen) + rubric(claim, rejected)) / 2
        evenly += sum(rubric(claim, draft) for draft in written) / len(written)
    assert shown / 6000 == pytest.approx(evenly / 6000, abs=0.005)


def test_how_often_the_reviewers_are_right_is_what_the_model_says():
    """Of the records whose drafts differ in worth, the documented share prefers the better one."""
    gaps = [true_worth(claim, chosen) - true_worth(claim, rejected) for _, claim, chosen, rejected in records()]
    differing = [gap for gap in gaps if gap != 0]
    assert len(differing) / len(gaps) == pytest.approx(0.785, abs=0.001)
    assert sum(gap > 0 for gap in differing) / len(differing) == pytest.approx(0.885, abs=0.001)


def test_examples_for_chat_models_are_training_claims_of_every_kind():
    train = {row["question"] for row in rows("claims_train.jsonl")}
    assert set(EXAMPLES) <= train, "a held-out claim is given away in the prompt"
    assert {make_data.kind(parse_claim(example)) for example in EXAMPLES} == set(make_data.SHARES)


# -------------------------------------------------------------------------------------------------------- annotator model

CLAIM = parse_claim("plus leak kitchen moderate 6 days invoice none")
FIT = fit_draft(CLAIM)
BARE = Draft(Decision.DECLINE, None, None, authorises=False)


def share(model: AnnotatorModel, first: Draft, second: Draft) -> float:
    generator = Random(1)
    return sum(model.judge(CLAIM, first, second, generator)[1] == first for _ in range(2000)) / 2000


def test_utility_is_worth_and_bias():
    assert (true_worth(CLAIM, FIT), true_worth(CLAIM, BARE)) == (5.5, 2.0)
    assert utility(Reviewer("x", leniency=1.0, brevity=0.5), CLAIM, FIT) == 6.5
    assert utility(Reviewer("x", leniency=1.0, brevity=0.5), CLAIM, BARE) == 2.5


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (AnnotatorModel((Reviewer("x"),), disagreement=0.01, slip=0.0), 1.0),
        (AnnotatorModel((Reviewer("x"),), disagreement=1e9, slip=0.0), 0.5),
        (AnnotatorModel((Reviewer("x"),), disagreement=0.01, slip=1.0), 0.5),
        (AnnotatorModel((Reviewer("x", brevity=5.0),), disagreement=0.01, slip=0.0), 0.0),  # bias beats worth
        (AnnotatorModel((Reviewer("x"),), disagreement=3.5, slip=0.0), 0.731),  # sigmoid(1)
    ],
)
def test_knobs(model, expected):
    assert share(model, FIT, BARE) == pytest.approx(expected, abs=0.04)


@pytest.mark.parametrize("wrong", [{"reviewers": ()}, {"disagreement": 0.0}, {"slip": 1.5}])
def test_impossible_knobs_are_refused(wrong):
    with pytest.raises(ValueError, match="expected reviewers"):
        AnnotatorModel(**wrong)
