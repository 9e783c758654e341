"""How long answers are, how often they repeat, and whether length goes with the reward, by hand."""

from __future__ import annotations

from nat_finetune.report.responses import response_figures
from nat_finetune.types import FinishReason, ModelCall, RewardCondition, RewardTerm, Rollout, SamplingParams, Target

TARGET = Target(("f",), "policy", (RewardTerm("r"),))


def rollout(example, text, tokens, reward, *, path=("<workflow>", "f"), **rewards):
    call = ModelCall(
        rollout_id="x", seq=0, path=path, start=0.0, end=1.0, llm="policy", messages=(), finish_reason=FinishReason.STOP,
        message={"role": "assistant", "content": text}, sampling=SamplingParams(99),
        completion_ids=None if tokens is None else (1,) * tokens,
    )  # fmt: skip
    return Rollout("x", example, 0, 0, (call,), rewards={"r": reward, **rewards})


def test_lengths_repetitions_and_correlation():
    made = [
        rollout(1, "a", 1, 0.1), rollout(1, "a", 2, 0.2), rollout(1, "b", 3, 0.3),
        rollout(2, "a", 9, 0.0), rollout("2", "a", 5, 1.0),
    ]  # fmt: skip
    found = response_figures(made, TARGET)
    assert (found["tokens_mean"], found["tokens_max"]) == (4.0, 9.0)
    assert found["repeated"] == 0.5  # of example 1's three answers one of two that could; 2 and "2" are two examples
    assert found["correlation"]["r"] > 0.999


def test_what_is_not_known_is_not_zero():
    found = response_figures([rollout(1, "a", None, 0.1), rollout(2, "b", 3, 0.2, path=("<workflow>",))], TARGET)
    assert found == {"tokens_mean": None, "tokens_max": None, "repeated": None, "correlation": {"r": None}}
    assert response_figures([], TARGET)["tokens_mean"] is None


def test_a_reward_with_a_condition_counts_as_it_is_paid():
    condition = RewardCondition("right", at_least=1.0, otherwise=-1.0)
    target = Target(("f",), "policy", (RewardTerm("r", condition=condition),))
    made = [rollout(1, "a", 1, 5.0, right=0.0), rollout(1, "b", 2, 0.0, right=1.0)]
    assert response_figures(made, target)["correlation"]["r"] > 0.999
