"""The canary's three checks, each by itself, and the KL to the previous policy by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from nat_finetune.data.batches import Rows
from nat_finetune.errors import AgreementError
from nat_finetune.local.agreement import (
    Canary,
    Seen,
    check_canaries,
    engine_changed,
    engine_equals_trainer,
    engine_is_not_base,
    kl_previous,
)

CANARY = Canary((((1,), (2, 3)),), ((True, False),))
SEEN = Seen(
    before=[[-1.0, -2.0]],
    engine=[[-1.5, -2.25]],
    trainer=[[-1.5, -2.125]],
    fixed_engine=[[-3.0, -4.0]],
    fixed_trainer=[[-3.0, -4.0]],
    fixed_base=[[-2.0, -4.0]],
)


def test_what_the_checks_find():
    found = check_canaries(SEEN, CANARY, bound=0.2, changed=True, sampled=True)
    log_ratio = -0.5
    assert found == {
        "agreement_max_abs": 0.125,
        "agreement_mean_abs": 0.0625,
        "canary_moved": 0.5,
        "canary_from_base": 1.0,
        "kl_previous": pytest.approx(math.exp(log_ratio) - 1 - log_ratio),
    }
    assert "kl_previous" not in check_canaries(SEEN, CANARY, bound=0.2, changed=True, sampled=False)


def test_engine_equals_trainer():
    assert engine_equals_trainer(SEEN, bound=0.125)["agreement_max_abs"] == 0.125
    with pytest.raises(
        AgreementError, match=r"engine equals trainer: .* up to 0\.125 nats .*, more than agreement\.bound = 0\.1"
    ):
        engine_equals_trainer(SEEN, bound=0.1)
    with pytest.raises(AgreementError, match="up to nan nats"):
        engine_equals_trainer(replace(SEEN, engine=[[math.nan, -2.0]]), bound=0.1)


def test_engine_changed():
    still = replace(SEEN, engine=SEEN.before)
    assert engine_changed(still, changed=False) == {"canary_moved": 0.0}
    with pytest.raises(AgreementError, match="engine changed: the weights changed"):
        engine_changed(still, changed=True)


@pytest.mark.parametrize("engine", [[[-2.0, -4.0]], [[-2.25, -4.3]], [[-1.0, -4.0]]], ids=["base", "near it", "opposite"])
def test_engine_is_not_the_base(engine):
    with pytest.raises(AgreementError, match="engine is not the base: training has moved the policy by 1 nats"):
        engine_is_not_base(replace(SEEN, fixed_engine=engine), bound=1.0)


def test_nearer_to_the_base_than_rounding_nothing_is_said():
    at_base = replace(SEEN, fixed_engine=SEEN.fixed_base)
    assert engine_is_not_base(at_base, bound=20.0) == {"canary_from_base": 0.0}
    assert engine_is_not_base(replace(at_base, fixed_trainer=SEEN.fixed_base), bound=1e-3) == {"canary_from_base": 0.0}


def test_kl_is_over_the_sampled_tokens_and_never_negative():
    both = replace(CANARY, trained=((True, True),))
    assert kl_previous(SEEN, both) != kl_previous(SEEN, CANARY)
    up = replace(SEEN, engine=[[-0.5, -2.0]])
    assert kl_previous(up, CANARY) == pytest.approx(math.exp(0.5) - 1.5)


def test_canaries_know_which_tokens_were_trained():
    rows = Rows.of([[5, 6, 7, 8], [5, 6, 7, 8], [5, 9]], [[0, 1, 0, 1], [0, 1, 0, 1], [0, 1]])
    canary = Canary.of(rows, count=8, max_tokens=9)
    assert canary.rows == (((5,), (6, 7, 8)), ((5,), (9,)))
    assert canary.trained == ((True, False, True), (True,))
    assert Canary.of(rows, count=1, max_tokens=9).rows == canary.rows[:1]
    assert Canary.of(rows, count=8, max_tokens=6).rows == canary.rows  # a row that is there already costs nothing
    assert Canary.of(rows, count=8, max_tokens=5).rows == canary.rows[:1]
    assert Canary.of(rows, count=8, max_tokens=1).rows == canary.rows[:1]


def test_fixed_canaries_are_those_of_the_seed_and_fit_the_context():
    assert Canary.fixed(9, context=None, seed=1) == Canary.fixed(9, context=None, seed=1)
    assert Canary.fixed(9, context=None, seed=1) != Canary.fixed(9, context=None, seed=2)
    short = Canary.fixed(9, context=4, seed=1)
    assert {len(prompt) + len(completion) for prompt, completion in short.rows} == {4}
    assert {token for prompt, completion in short.rows for token in prompt + completion} <= set(range(9))
