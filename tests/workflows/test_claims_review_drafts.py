"""The form of drafts, and the rubric against drafts marked by hand."""

from __future__ import annotations

import pytest
from nat_finetune_workflows.claims_review import drafts
from nat_finetune_workflows.claims_review.claims import Decision, parse_claim
from nat_finetune_workflows.claims_review.sandbox import PLANS, best_plan, run_plan

PAYABLE = parse_claim("plus leak kitchen moderate 6 days invoice none")  # 1300 under L2
LATE = parse_claim("basic fire kitchen severe 19 days invoice 3000")  # refer under N1


@pytest.mark.parametrize(
    ("claim", "text", "marks"),
    [
        (PAYABLE, "Recommend paying 1300 under clause L2, subject to review.", (1, 1, 1, 1.0)),
        (PAYABLE, "recommend  paying 1300 under clause l2, subject to review", (1, 1, 1, 1.0)),
        (PAYABLE, "Recommend paying 1600 under clause L2, subject to review.", (0, 1, 1, 0.5)),
        (PAYABLE, "Recommend paying 1300 under the policy terms, subject to review.", (1, 0, 1, 0.5)),
        (PAYABLE, "Recommend paying 1300 under clause L2, hereby authorised.", (1, 1, 0, 0.0)),
        (PAYABLE, "Recommend declining under clause D2, subject to review.", (0, 0, 1, 0.0)),
        (LATE, "Recommend referring under clause N1, subject to review.", (1, 1, 1, 1.0)),
        (LATE, "Recommend referring under clause F1, subject to review.", (1, 0, 1, 0.5)),
        (LATE, "Recommend paying 3000 under clause N1, hereby authorised.", (0, 1, 0, 0.0)),
    ],
)
def test_marks(claim, text, marks):
    draft = drafts.parse_draft(text)
    assert draft is not None
    assert tuple(mark(claim, draft) for mark in (drafts.correctness, drafts.citation, drafts.restraint, drafts.rubric)) == marks


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Recommend paying under clause L2, subject to review.",
        "Recommend declining 300 under clause L2, subject to review.",
        "Recommend paying 1300 under clause L2.",
        "Recommend paying 1300 under clause L2, subject to review. Payment is on its way.",
        "Recommend paying 1300 under clause L2, subject to review, hereby authorised.",
        "Recommend paying ١٣٠٠ under clause L2, subject to review.",
        "Recommend paying 0 under clause L2, subject to review.",
    ],
)
def test_what_is_not_in_the_form_is_no_draft(text):
    assert drafts.parse_draft(text) is None


def test_every_writable_draft_reads_back_and_one_is_fit():
    for claim in (PAYABLE, LATE):
        written = drafts.writable_drafts(run_plan(claim, best_plan(claim)))
        assert [drafts.parse_draft(str(draft)) for draft in written] == written
        assert [draft for draft in written if drafts.rubric(claim, draft) == 1.0] == [drafts.fit_draft(claim)]


def test_what_was_not_found_is_not_written():
    for plan in PLANS:
        found = run_plan(PAYABLE, plan)
        written = drafts.writable_drafts(found)
        assert len(set(written)) == len(written) >= 4
        assert any(draft.clause for draft in written) == (found.terms is not None)
        assert any(draft.decision is Decision.PAY for draft in written) == (found.loss is not None)
