"""The audit says what a run's figures show, with them, and nothing where they show nothing."""

from __future__ import annotations

import doctest

import pytest

from nat_finetune.report import trend
from nat_finetune.report.audit import audit


def steps(
    count=12, *, reward=lambda i: 0.5, watched=None, tokens=lambda i: 20.0, lengths=0.0, repeated=0.1, share=None, opposed=0.0
):
    made = []
    for i in range(count):
        rewards = {"r": {"mean": reward(i), "spread": 0.3, "correlation": {"w": opposed}}}
        if watched is not None:
            rewards["w"] = {"mean": watched(i), "spread": 0.3}
        made.append(
            {
                "step": i,
                "reward": rewards,
                "response": {"tokens_mean": tokens(i), "repeated": repeated, "correlation": {"r": lengths}},
                "advantage_share": share or {},
            }
        )
    return made


def kinds(findings):
    return [(finding.kind, finding.warning) for finding in findings]


def rises(i):
    return 0.3 + 0.04 * i + 0.001 * (-1) ** i


def falls(i):
    return 0.9 - 0.04 * i + 0.001 * (-1) ** i


def flat(i):
    return 0.5 + 0.01 * (-1) ** i


def gain(mean, low, high, name="m"):
    return {"name": name, "mean": mean, "low": low, "high": high, "n": 30}


def test_nothing_to_see():
    assert audit(steps(watched=flat), ["r"], {}) == []
    assert audit([], ["r"], {}) == []
    assert audit([{"step": 0, "reward": {}}], ["r"], {}) == []


def test_a_reward_that_rises_while_what_is_watched_falls():
    (found,) = audit(steps(reward=rises, watched=falls), ["r"], {})
    assert (found.kind, found.warning) == ("drift", True)
    assert found.found.startswith("reward hacking? the training reward r rose from 0.301 to 0.739 while w, which is watched")
    assert "fell from 0.860 to 0.500" in found.found
    assert audit(steps(reward=flat, watched=falls), ["r"], {}) == []
    assert audit(steps(reward=rises, watched=rises), ["r"], {}) == []


def test_a_metric_that_rose_before_it_collapsed_is_drift():
    levels = [0.17, 0.21, 0.28, 0.35, 0.31, 0.2, 0.1, 0.0]
    found = audit(steps(8, reward=rises, watched=lambda i: levels[i]), ["r"], {})
    assert ("drift", True) in kinds(found)


@pytest.mark.parametrize(
    "levels", [[0.17, 0.2, 0.3, 0.35, 0.34, 0.3, 0.28, 0.25], [0.3, 0.2, 0.35, 0.25, 0.33, 0.22, 0.31, 0.24]]
)
def test_a_dip_above_the_start_and_noise_are_not(levels):
    found = audit(steps(8, reward=rises, watched=lambda i: levels[i]), ["r"], {})
    assert ("drift", True) not in kinds(found)


def test_a_reward_that_rises_while_a_held_out_metric_falls():
    held_out = {"m on the test set": gain(-0.2, -0.3, -0.1)}
    (found,) = audit(steps(reward=rises), ["r"], held_out)
    assert "while m on the test set fell by 0.200 [-0.300, -0.100]" in found.found
    assert found.figures["m on the test set"] == -0.2
    assert audit(steps(reward=rises), ["r"], {"m on the test set": gain(-0.2, -0.5, 0.1)}) == []
    assert audit(steps(reward=falls), ["r"], held_out) == []


def test_the_reward_itself_falling_on_held_out_examples_is_no_hacking():
    (found, _) = audit(steps(reward=rises), ["r"], {"r on the test set": gain(-0.2, -0.3, -0.1, name="r")})
    assert "hacking" not in found.found
    assert "learned the training examples" in found.meaning


def test_length_is_a_note_and_where_the_policy_follows_it_a_warning():
    (found,) = audit(steps(watched=flat, lengths=0.8), ["r"], {})
    assert (found.kind, found.warning, found.figures["correlation"]) == ("length", False, pytest.approx(0.8))
    (found,) = audit(steps(watched=flat, lengths=0.8, tokens=lambda i: 10.0 + i), ["r"], {})
    assert found.warning
    assert (
        "correlation +0.80 inside groups with the tokens of a rollout, and rollouts went from 11.0 to 20.0 tokens"
        in found.found
    )
    assert "longer answers" in found.meaning
    (found,) = audit(steps(watched=flat, lengths=-0.8, tokens=lambda i: 10.0 + i), ["r"], {})
    assert (found.warning, "shorter answers" in found.meaning) == (False, True)
    assert audit(steps(watched=flat, lengths=0.49), ["r"], {}) == []


def test_one_of_two_rewards_that_trains_alone():
    found = audit(steps(watched=flat, share={"r": 0.99, "s": 0.01}), ["r", "s"], {})
    assert [(f.kind, f.figures["share"]) for f in found] == [
        ("dominance", pytest.approx(0.99)),
        ("dominance", pytest.approx(0.01)),
    ]
    assert "r trains nearly alone: it made 99% of the advantages" in found[0].found
    assert audit(steps(watched=flat, share={"r": 0.6, "s": 0.4}), ["r", "s"], {}) == []


def test_repeated_answers_and_a_metric_that_is_opposed():
    assert kinds(audit(steps(watched=flat, repeated=0.7), ["r"], {})) == [("repetition", False)]
    (found,) = audit(steps(watched=flat, opposed=-0.5), ["r"], {})
    assert found.found == "r goes against w: correlation -0.50 inside groups"


def test_nothing_independent_is_measured():
    assert kinds(audit(steps(), ["r"], {"r on the test set": gain(0.1, 0.0, 0.2, name="r")})) == [("unwatched", False)]
    assert audit(steps(), ["r"], {"m on the test set": gain(0.1, 0.0, 0.2)}) == []


def test_lines_of_earlier_versions_are_read():
    old = [{key: value for key, value in step.items() if key in ("step", "reward")} for step in steps(watched=flat)]
    assert audit(old, ["r"], {}) == []


def test_worked_numbers_of_trends():
    result = doctest.testmod(trend)
    assert result.attempted >= 3
    assert result.failed == 0
