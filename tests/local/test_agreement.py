"""The canary's three checks, each by itself, and the KL to the previous policy by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
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
    trained_scores,
)
from nat_finetune.local.scores import SAMPLER, TEMPERATURE

CANARY = Canary((((1,), (2, 3)),), ((True, False),))
SEEN = Seen(
    before=[[-1.0]],
    engine=[[-1.5, -2.25]],
    trainer=[[-1.5, -2.125]],
    fixed_before=[[-2.5, -4.0]],
    fixed_engine=[[-3.0, -4.0]],
    fixed_trainer=[[-3.0, -4.0]],
    fixed_base=[[-2.0, -4.0]],
)


def test_what_the_checks_find():
    found = check_canaries(SEEN, CANARY, bound=0.2, rounding=1e-3, changed=True)
    log_ratio = -0.5
    assert found == {
        "agreement_max_abs": 0.125,
        "agreement_mean_abs": 0.0625,
        "canary_moved": 0.5,
        "canary_from_base": 1.0,
        "kl_previous": pytest.approx(math.exp(log_ratio) - 1 - log_ratio),
    }
    assert "kl_previous" not in check_canaries(replace(SEEN, before=None), CANARY, bound=0.2, rounding=1e-3, changed=True)


def test_engine_equals_trainer():
    assert engine_equals_trainer(SEEN, bound=0.125)["agreement_max_abs"] == 0.125
    with pytest.raises(
        AgreementError, match=r"engine equals trainer: .* up to 0\.125 nats .*, more than agreement\.bound = 0\.1"
    ):
        engine_equals_trainer(SEEN, bound=0.1)
    with pytest.raises(AgreementError, match="up to nan nats"):
        engine_equals_trainer(replace(SEEN, engine=[[math.nan, -2.0]]), bound=0.1)


def test_engine_changed():
    still = replace(SEEN, fixed_engine=SEEN.fixed_before)
    assert engine_changed(still, rounding=1e-3, changed=False) == {"canary_moved": 0.0}
    with pytest.raises(AgreementError, match="engine changed: the weights changed"):
        engine_changed(still, rounding=1e-3, changed=True)
    hidden = replace(still, fixed_trainer=[[-2.50001, -4.0]])  # a step so small that both may be the new policy
    assert engine_changed(hidden, rounding=1e-3, changed=True) == {"canary_moved": 0.0}


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
    assert trained_scores(CANARY, SEEN.engine) == [[-1.5]]
    assert trained_scores(both, SEEN.engine) == SEEN.engine
    assert kl_previous([[-1.0]], [[-0.5]]) == pytest.approx(math.exp(0.5) - 1.5)


ROWS = Rows.of([[5, 6, 7, 8], [5, 6, 7, 8], [5, 9], [4, 9]], [[0, 1, 0, 1], [0, 1, 0, 1], [0, 1], [0, 1]])


def test_canaries_know_which_tokens_were_trained():
    canary = Canary.of(ROWS, None, count=8, max_tokens=7)
    assert canary.rows == (((5,), (6, 7, 8)), ((5,), (9,)), ((4,), (9,)))
    assert canary.trained == ((True, False, True), (True,), (True,))
    assert canary.drawn is None
    assert Canary.of(ROWS, None, count=1, max_tokens=9).rows == canary.rows[:1]
    assert Canary.of(ROWS, None, count=8, max_tokens=6).rows == canary.rows[:2]
    assert Canary.of(ROWS, None, count=8, max_tokens=5).rows == canary.rows[:2]  # what is there already costs nothing
    assert Canary.of(ROWS, None, count=8, max_tokens=4).rows == canary.rows[:1]
    assert Canary.of(ROWS, None, count=8, max_tokens=1).rows == canary.rows[:1]


def test_what_the_policy_drew_itself_need_not_be_scored_again():
    ROWS.add_column(SAMPLER, [np.array(values, np.float32) for values in ([0, -1, 0, -2], [0, -1, 0, -2], [0, -3], [0, -4])])
    ROWS.add_column(TEMPERATURE, [np.ones(length, np.float32) for length in (4, 4, 2, 2)])
    everything = np.ones(4, np.bool_)
    assert Canary.of(ROWS, everything, count=2, max_tokens=9).drawn == ((-1.0, -2.0), (-3.0,))
    assert Canary.of(ROWS, np.array([True, True, False, True]), count=2, max_tokens=9).drawn is None  # an older policy's
    assert Canary.of(ROWS, np.array([True, True, False, True]), count=1, max_tokens=9).drawn == ((-1.0, -2.0),)
    ROWS.columns[TEMPERATURE][9] = 0.5
    assert Canary.of(ROWS, everything, count=2, max_tokens=9).drawn is None
    ROWS.columns[TEMPERATURE][9] = 1
    ROWS.columns[SAMPLER][9] = np.nan
    assert Canary.of(ROWS, everything, count=2, max_tokens=9).drawn is None


def test_fixed_canaries_are_those_of_the_seed_and_fit_the_context():
    assert Canary.fixed(9, context=None, seed=1) == Canary.fixed(9, context=None, seed=1)
    assert Canary.fixed(9, context=None, seed=1) != Canary.fixed(9, context=None, seed=2)
    short = Canary.fixed(9, context=4, seed=1)
    assert {len(prompt) + len(completion) for prompt, completion in short.rows} == {4}
    assert {token for prompt, completion in short.rows for token in prompt + completion} <= set(range(9))
