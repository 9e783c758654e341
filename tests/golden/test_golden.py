"""Golden vectors: numbers from reference implementations that our functions must reproduce.

Every `*.json` in GOLDEN_DIR (default: this folder) is run at the tolerance that it names. What a case is, is read off its
inputs, never off its id, so new files of the same form run as they are; a key of a case's config that is not understood
here fails it. What can't be expressed is skipped by name, with the reason, in `QUIRKS`.
"""

import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nat_finetune.algorithms.advantages import Advantages, group_advantages
from nat_finetune.algorithms.dpo import PER_LENGTH, preference_loss, sequence_logprobs
from nat_finetune.algorithms.gdpo import condition_reward, gdpo_advantages
from nat_finetune.algorithms.importance import importance_correction
from nat_finetune.algorithms.kl import token_kl
from nat_finetune.algorithms.overlong import soft_overlong_penalty
from nat_finetune.algorithms.policy_gradient import RATIOS, Clip, policy_gradient_loss
from nat_finetune.algorithms.reduce import REDUCTIONS, StepCounts
from nat_finetune.errors import ConfigError, DataError

FOLDER = Path(os.environ.get("GOLDEN_DIR") or Path(__file__).parent)


@dataclass(frozen=True)
class Case:
    id: str
    inputs: dict[str, Any]
    config: dict[str, Any]
    expected: dict[str, Any]
    tolerance: float

    def read(self, key: str) -> Tensor:
        return tensor(self.inputs[key])

    def check(self, name: str, actual: Tensor | float) -> None:
        torch.testing.assert_close(
            torch.as_tensor(actual, dtype=torch.float64),
            tensor(self.expected[name]),
            rtol=self.tolerance,
            atol=self.tolerance,
            msg=lambda text: f"{self.id}: {name}: {text}",
        )


class Options:
    """A config whose every key must be taken: what nobody asked for was not understood."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.left = dict(config)

    def take(self, key: str, default: Any = None) -> Any:
        return self.left.pop(key, default)

    def done(self) -> None:
        assert not self.left, f"config keys that this test does not understand: {self.left}"


def tensor(value: Any) -> Tensor:
    def numbers(item: Any) -> Any:  # JSON has no NaN: the files write "NaN" and "Infinity"
        return [numbers(part) for part in item] if isinstance(item, list) else float(item)

    return torch.tensor(numbers(value), dtype=torch.float64)


def cases() -> Iterator[Case]:
    files = sorted(FOLDER.glob("*.json"))
    assert files, f"no golden files in {FOLDER}"
    for file in files:
        content = json.loads(file.read_text(encoding="utf-8"))
        for case in content["cases"]:
            yield Case(case["id"], case["inputs"], case["config"], case["expected"], content["meta"]["tolerance"])


# ---------------------------------------------------------------------------------------------------------------------
# Advantages

BASELINES = {"mean": "mean", "loo": "leave_one_out"}
VERL_EPS = 1e-6
TRL_EPS = 1e-4
REWARD_ERRORS = {
    "non_finite_reward": (DataError, "not finite"),
    "reward_weights_length": (ConfigError, "reward weights for"),
}


def run_grpo(case: Case) -> None:
    options = Options(case.config)
    mode, missing = options.take("mode"), options.take("on_missing", "exclude")
    baseline = BASELINES[options.take("baseline", "mean")]
    scale = options.take("scale", "group")
    eps = options.take("eps", VERL_EPS if mode == "verl_grpo" else TRL_EPS)
    assert mode in KNOWN_MODES
    assert missing in ("exclude", "error")
    # Both ways agree with our one rule: a baseline of the group's mean leaves 0 where the deviation is 0.
    assert (options.take("zero_std", "skip"), baseline) != ("divide", "leave_one_out")
    options.done()

    def run() -> Advantages:
        return group_advantages(
            case.read("rewards"),
            case.read("group_ids").long(),
            baseline=baseline,
            scale=scale,
            eps=eps,
            allow_missing=missing == "exclude",
        )

    if "error" in case.expected:
        error, text = REWARD_ERRORS[case.expected["error"]]
        index = case.expected.get("offending_index")
        with pytest.raises(error, match=text if index is None else rf"reward {index} is {text}"):
            run()
        return
    result = run()
    ours = {
        "advantages": result.advantages_B,
        "baseline": result.baseline_B,
        "std_used": result.std_B,
        "zero_variance_group": result.flat_B,
        "valid": result.valid_B,
    }
    compare(case, ours)
    assert not result.advantages_B[result.flat_B].any()  # exactly 0, no tolerance


KNOWN_MODES = {"group_std", "batch_std", "none", "nemo_rl_loo", "nemo_rl_loo_no_norm", "nemo_rl_mean", "verl_grpo"}
GDPO_EPS = {"trl": (1e-4, 1e-4), "nemo_rl": (1e-6, 0.0), "nemo_rl_loo": (1e-6, 0.0), "verl": (1e-6, None)}


def run_gdpo(case: Case) -> None:
    options = Options(case.config)
    options.take("note")
    variant = options.take("variant", "trl")
    eps = options.take("eps")
    default_group, default_batch = GDPO_EPS[variant] if eps is None else (eps, eps)
    baseline = BASELINES[options.take("baseline", "loo" if variant == "nemo_rl_loo" else "mean")]
    eps_group, eps_batch = options.take("eps_group", default_group), options.take("eps_batch", default_batch)
    by_token = options.take("whiten", "token" if variant == "verl" else "sample") == "token"
    weights, missing = options.take("reward_weights"), options.take("on_missing", "exclude")
    condition = options.take("condition")
    assert (options.take("zero_std", "skip"), baseline) != ("divide", "leave_one_out")
    options.done()

    rewards_B_K = case.read("raw_rewards" if "raw_rewards" in case.inputs else "rewards")
    group_ids_B = case.read("group_ids").long()
    if condition is not None:
        rewards_B_K = apply_condition(rewards_B_K, case.inputs["reward_names"], condition)

    def run() -> Any:
        return gdpo_advantages(
            rewards_B_K,
            group_ids_B,
            weights_K=[1.0] * rewards_B_K.shape[1] if weights is None else weights,
            eps_group=eps_group,
            eps_batch=eps_batch or 0.0,
            baseline=baseline,
            token_counts_B=case.read("response_lengths") if by_token else None,
            allow_missing=missing == "exclude",
        )

    if "error" in case.expected:
        error, text = REWARD_ERRORS[case.expected["error"]]
        with pytest.raises(error, match=text):
            run()
        return
    result = run()
    total_B = rewards_B_K.sum(1)
    on_sum = group_advantages(total_B, group_ids_B, baseline=baseline, scale="group", eps=eps_group)
    ours = {
        "conditioned_rewards": rewards_B_K,
        "per_reward": result.per_reward_B_K,
        "pre_batch_norm": result.combined_B,
        "gdpo_pre_batch_norm": result.combined_B,
        "advantages": result.advantages_B,
        "grpo_on_sum": on_sum.advantages_B,
        "valid": result.valid_B,
    }
    compare(case, ours)


def apply_condition(rewards_B_K: Tensor, names: list[str], condition: dict[str, Any]) -> Tensor:
    options = Options(condition)
    conditioned_B_K = condition_reward(
        rewards_B_K,
        reward=names.index(options.take("reward")),
        requires=names.index(options.take("requires")),
        at_least=options.take("at_least"),
        otherwise=options.take("otherwise"),
    )
    options.done()
    return conditioned_B_K


def run_overlong(case: Case) -> None:
    options = Options(case.config)
    max_length, buffer = options.take("max_response_length"), options.take("overlong_buffer_length")
    penalty = options.take("overlong_buffer_penalty")
    options.done()
    lengths_B = case.read("response_length").reshape(-1)
    reward = case.read("reward") + soft_overlong_penalty(
        lengths_B, max_length=max_length, buffer=buffer, penalty=penalty
    ).reshape(case.read("reward").shape)
    ours = {"paper": reward}
    if bool((lengths_B <= max_length).all()):  # beyond it NeMo RL falls on, and we don't
        ours["nemo_rl_unfloored"] = reward
    compare(case, ours, not_ours={"nemo_rl_unfloored"})


# ---------------------------------------------------------------------------------------------------------------------
# Losses

AGGREGATIONS = {"token_mean": "token_mean", "seq_mean": "sequence_mean", "dr_grpo": "constant_length"}
CORRECTIONS = {
    "token_truncate": "truncate_tokens",
    "token_mask": "mask_tokens",
    "sequence_truncate": "truncate_sequences",
    "sequence_mask": "mask_sequences",
    "seq_geomean_mask": "mask_sequences_by_mean",
}


def take_clip(options: Options, kind: str) -> Clip | None:
    low, high = options.take("clip_low", 0.2), options.take("clip_high", 0.2)
    dual, cap = options.take("dual_clip"), options.take("delta")
    if kind == "cispo":
        low, high = 1 - options.take("cispo_min", 0.0), options.take("cispo_max") - 1
    return None if kind == "reinforce" else Clip(low=low, high=high, dual=dual, ratio_cap=cap)


def run_policy(case: Case) -> None:
    options = Options(case.config)
    kind, ratio = options.take("kind", "clip"), options.take("ratio", "token")
    clip = take_clip(options, kind)
    old, mask, advantages_B = case.read("old_logprobs"), case.read("mask"), case.read("advantages")
    logprobs = case.read("new_logprobs").requires_grad_()
    counts = StepCounts(
        tokens=mask.sum().item(), sequences=len(mask), rollouts=len(mask), max_length=options.take("max_len", 0)
    )
    weights = REDUCTIONS[AGGREGATIONS[options.take("agg")]](mask, mask.sum(-1), counts)
    kl_beta, kl_type = options.take("kl_beta", 0.0), options.take("kl_type", "k3")
    kl_gradient = options.take("kl_grad", "direct")
    clamps = {"input_clamp": options.take("kl_in_clamp"), "output_clamp": options.take("kl_out_clamp")}
    kl = None
    if kl_beta:
        kl = token_kl(logprobs, case.read("ref_logprobs"), mask, estimator=kl_type, gradient=kl_gradient, **clamps)
    mode, low, high = options.take("is_mode"), options.take("is_min"), options.take("is_max")
    correction = None
    if mode is not None:
        bounds = {"low": 0.0 if low is None else low, "high": math.inf if high is None else high}
        correction = importance_correction(old, case.read("sampler_logprobs"), mask, mode=CORRECTIONS[mode], **bounds)
    options.done()
    output = policy_gradient_loss(
        logprobs,
        old,
        advantages_B if advantages_B.ndim == 2 else advantages_B.unsqueeze(-1).expand_as(mask),
        mask,
        weights,
        ratio=ratio,
        surrogate={"clip": "clipped"}.get(kind, kind),
        clip=clip,
        total_tokens=counts.tokens,
        correction_B_T=correction,
        kl_B_T=kl,
        kl_coefficient=kl_beta,
    )
    output.loss.backward()
    absent = {"kl_term": torch.zeros(()), "mean_kl": torch.zeros(())}
    ours = {"loss": output.loss.detach(), "grad_new": logprobs.grad} | absent | dict(output.sums)
    compare(case, ours, not_ours={"ratio"})
    # The files give ratios also where nothing is trained, and one per row for a sequence ratio.
    ratio_B_T = RATIOS[ratio](logprobs.detach(), old, mask).exp()
    expected_B_T = tensor(case.expected["ratio"]).expand_as(mask)
    torch.testing.assert_close(ratio_B_T[mask > 0], expected_B_T[mask > 0], rtol=case.tolerance, atol=case.tolerance)


def run_dpo(case: Case) -> None:
    options = Options(case.config)
    loss = options.take("loss")
    average = options.take("average_log_probs", False) or loss in PER_LENGTH
    sft_weight, sft_average = options.take("sft_weight", 0.0), options.take("sft_average", False)
    keywords = {"beta": options.take("beta"), "label_smoothing": options.take("label_smoothing", 0.0)}
    keywords["preference_weight"] = options.take("preference_weight", 1.0)
    options.done()
    masks = {side: case.read(f"mask_{side}") for side in ("chosen", "rejected")}
    policy = {side: case.read(f"policy_{side}").requires_grad_() for side in masks}
    result = preference_loss(
        *(sequence_logprobs(policy[side], masks[side], average=average) for side in masks),
        *(sequence_logprobs(case.read(f"ref_{side}"), masks[side], average=average) for side in masks),
        loss=loss,
        total_pairs=len(masks["chosen"]),
        chosen_nll_B=-sequence_logprobs(policy["chosen"], masks["chosen"], average=sft_average),
        sft_weight=sft_weight,
        **keywords,
    )
    result.loss.backward()
    assert result.sft_loss_B is not None
    ours = {
        "loss": result.loss.detach(),
        "preference_loss": result.pair_loss_B.mean(),
        "sft_loss": result.sft_loss_B.mean(),
        "per_pair_loss": result.pair_loss_B,
        "chosen_logratio": result.chosen_logratio_B,
        "rejected_logratio": result.rejected_logratio_B,
        "implicit_reward_chosen": result.chosen_reward_B,
        "implicit_reward_rejected": result.rejected_reward_B,
        "margin": result.margin_B,
        "accuracy": result.correct_B.double().mean(),
        "grad_policy_chosen": policy["chosen"].grad,
        "grad_policy_rejected": policy["rejected"].grad,
    }
    compare(case, ours)


# ---------------------------------------------------------------------------------------------------------------------
# Dispatch


def compare(case: Case, ours: dict[str, Any], not_ours: set[str] | None = None) -> None:
    unknown = case.expected.keys() - ours.keys() - (not_ours or set())
    assert not unknown, f"{case.id}: expected values that this test does not understand: {unknown}"
    for name in case.expected.keys() & ours.keys():
        case.check(name, ours[name])


def runner(case: Case) -> Callable[[Case], None]:
    """By what the inputs hold; the first key that is there decides."""
    by_input = {"policy_chosen": run_dpo, "new_logprobs": run_policy, "response_length": run_overlong}
    for key, run in by_input.items():
        if key in case.inputs:
            return run
    rewards = case.inputs.get("raw_rewards", case.inputs.get("rewards"))
    assert rewards is not None, f"{case.id}: inputs of no known form: {list(case.inputs)}"
    return run_gdpo if isinstance(rewards[0], list) else run_grpo


def group_of_one(case: Case) -> bool:
    ids = case.inputs.get("group_ids", [])
    return any(ids.count(group) == 1 for group in ids)


def quirk(case: Case) -> str | None:
    """Why this case pins what another system does by accident, or None."""
    verl = "verl" in (case.config.get("variant"), str(case.config.get("mode", "")).removesuffix("_grpo"))
    if verl and group_of_one(case):
        return "verl keeps the raw score of a group of one; ours is 0, as there is nothing to compare it with"
    return None


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in cases()])
def test_golden(case: Case) -> None:
    reason = quirk(case)
    if reason is not None:
        pytest.skip(f"{case.id}: {reason}")
    runner(case)(case)


def test_an_unknown_config_key_fails() -> None:
    case = next(iter(cases()))
    odd = Case(case.id, case.inputs, case.config | {"no_such_key": 1}, case.expected, case.tolerance)
    with pytest.raises(AssertionError, match="no_such_key"):
        runner(odd)(odd)
