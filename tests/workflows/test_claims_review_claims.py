"""Terms and right answers against cases worked out by hand."""

from __future__ import annotations

import pytest
from nat_finetune_workflows.claims_review.claims import Answer, Claim, Decision, parse_claim, payable, right_answer, terms

PAY, DECLINE, REFER = Decision.PAY, Decision.DECLINE, Decision.REFER


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("premier leak cellar moderate 29 days invoice 1200", Answer(PAY, "L3", 1100)),  # 1200 - 100
        ("plus leak kitchen moderate 6 days invoice none", Answer(PAY, "L2", 1300)),  # 800 x 2 - 300
        ("plus fire kitchen severe 6 days invoice none", Answer(PAY, "F2", 2200)),  # limit 2500 - 300
        ("basic leak kitchen severe 1 days invoice 3000", Answer(DECLINE, "L1")),  # excluded
        ("basic flood kitchen severe 75 days invoice none", Answer(DECLINE, "W1")),  # excluded comes before late
        ("basic fire kitchen severe 19 days invoice 3000", Answer(REFER, "N1")),  # late: 14 days
        ("plus fire kitchen severe 29 days invoice 3000", Answer(PAY, "F2", 2200)),  # in time: 30 days
        ("premier fire kitchen severe 75 days invoice 3000", Answer(REFER, "N3")),  # late: 60 days
        ("basic theft shed moderate 3 days invoice none", Answer(DECLINE, "D1")),  # 400 is below the deductible of 500
        ("basic theft garage light 3 days invoice none", Answer(DECLINE, "D1")),  # 500 is the deductible
    ],
)
def test_the_right_answer(line, answer):
    assert right_answer(parse_claim(line)) == answer


def test_a_claim_reads_back_as_it_is_written():
    claim = Claim("plus", "frost", "attic", "light", 13, 900)
    assert parse_claim(str(claim)) == claim


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("plus flood", "expected a claim such as"),
        ("plus flood kitchen severe twelve days invoice none", "expected a claim such as"),
        ("gold flood kitchen severe 12 days invoice none", "expected one of basic, plus, premier, found 'gold'"),
        ("plus hail kitchen severe 12 days invoice none", "found 'hail'"),
        ("plus flood kitchen severe 12 days invoice 1250", "in hundreds, or none, found '1250'"),
        ("plus flood kitchen severe 12 days invoice 0", "found '0'"),
    ],
)
def test_what_is_no_claim_says_why(line, message):
    with pytest.raises(ValueError, match=message):
        parse_claim(line)


def test_nothing_is_payable_on_what_is_not_owed():
    late = terms(parse_claim("plus fire kitchen severe 38 days invoice none"))
    assert (late.covered, late.in_time, payable(late, 3000)) == (True, False, 0)
