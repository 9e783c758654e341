"""Parts of a config that don't fit together are refused before anything is loaded, with what would fit."""

from __future__ import annotations

import pytest

from nat_finetune.compose import target_of
from nat_finetune.config.fit import check_fit
from nat_finetune.config.load import load_config
from nat_finetune.errors import ConfigError
from nat_finetune.registry import Registry
from nat_finetune.trainers.on_policy import OnPolicyTrainerConfig
from nat_finetune.types import RewardCondition, RewardTerm
from tests.config.components import WHOLE, HereConfig, registry
from tests.source_tree import ROOT

PAIRS = [
    ("trajectory_builder: groups", "trajectory_builder: pairs"),
    ("trainer_adapter: by_group", "trainer_adapter: by_pair"),
    ("trainer: fresh", "trainer: once"),
]


THERE = [
    ("by_group: {_type: here, algorithm: {name: grpo}}", "by_group: {_type: there}"),
    ("fresh: {_type: on_policy_trainer}", "fresh: {_type: backend_trainer}"),
]
"""A backend that runs the rollouts itself."""


def changed(*changes):
    text = WHOLE
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


def load(tmp_path, text):
    path = tmp_path / "c.yml"
    path.write_text(text)
    return load_config(path, registry=registry())


def test_both_methods_fit(tmp_path):
    load(tmp_path, WHOLE)
    load(tmp_path, changed(*PAIRS))
    load(tmp_path, changed(*PAIRS[:2]))
    load(tmp_path, changed(*THERE))
    load(tmp_path, changed(*THERE, ("grpo_traj_builder}", "grpo_traj_builder, num_generations: 4, credit: outcome}")))


CASES = {
    "builder and adapter": (
        changed(PAIRS[0]),
        "finetuning.trainer_adapter",
        "trajectory_builders.pairs (`_type: dpo_traj_builder`) makes preference pairs, "
        "trainer_adapters.by_group (`_type: here`) takes groups",
        "groups + by_group + fresh; pairs + by_pair + fresh; pairs + by_pair + once",
    ),
    "trainer and builder": (
        changed(PAIRS[2]),
        "finetuning.trainer",
        "trainers.once (`_type: preference_trainer`) is for demonstrations or preference pairs",
        "groups + by_group + fresh",
    ),
    "only one way is left": (
        changed(PAIRS[0], ("by_pair: {_type: here, algorithm: {name: dpo}}", "")),
        "finetuning.trainer_adapter",
        "makes preference pairs",
        "groups + by_group + fresh",
    ),
    "key that the trainer does not honour": (
        changed(*PAIRS, ("enabled: true", "enabled: true\n  examples_per_step: 1")),
        "finetuning.examples_per_step",
        "trainers.once (`_type: preference_trainer`) does not honour it",
        "leave it out",
    ),
    "rollouts that the backend does not run": (
        changed(THERE[1]),
        "finetuning.trainer",
        "trainer_adapters.by_group (`_type: here`), as it is configured, does not run rollouts",
        "use `_type: on_policy_trainer`",
    ),
    "rollouts that the backend runs": (
        changed(THERE[0]),
        "finetuning.trainer",
        "trainer_adapters.by_group (`_type: there`), as it is configured, runs the rollouts itself",
        "use `_type: backend_trainer`",
    ),
    "credit that the backend does not know": (
        changed(*THERE, ("grpo_traj_builder}", "grpo_traj_builder, credit: per_turn}")),
        "trajectory_builders.groups.credit",
        "runs the rollouts itself and takes only num_generations",
        "leave it out",
    ),
    "a validation between steps that there are not": (
        changed(*THERE, ("metrics: [outcome]}", "metrics: [outcome], interval: 2}")),
        "finetuning.validation.interval",
        "trains in one job",
        "leave it out",
    ),
    "a filter of groups that are not built here": (
        changed(*THERE, ("enabled: true", "enabled: true\n  flat_patience: 2")),
        "finetuning.flat_patience",
        "does not honour it",
        "leave it out",
    ),
    "weights out of reach": (
        changed(*PAIRS, ('policy: {_type: in_process, model: "builtin:tiny"}', "policy: {_type: endpoint, model: x}")),
        "finetuning.target_model",
        "llms.policy (`_type: endpoint`)",
        "use an llm of `_type: local`",
    ),
    "truncated sampling": (
        changed(('"builtin:tiny"', '"builtin:tiny", top_p: 0.9')),
        "llms.policy.top_p",
        "`_type: grpo_traj_builder` trains on sampled tokens at their logprobs",
        "leave it out",
    ),
    "candidates that nothing emits": (
        changed(*PAIRS, ("ttc_step_name: moves", "ttc_step_name: move")),
        "trajectory_builders.pairs.ttc_step_name",
        "no workflow, function or ttc_strategy of this config emits candidates named 'move'",
        "they emit: moves",
    ),
    "no candidates at all": (
        changed(*PAIRS, ("search: {_type: steps}", "")),
        "trajectory_builders.pairs.ttc_step_name",
        "emits candidates named 'moves'",
        "none of them emits scored candidates",
    ),
    "several llms": (
        changed(("llms:\n", "llms:\n  other: {_type: endpoint, model: x}\n"), ("  target_model: policy\n", "")),
        "finetuning.target_model",
        "there are 2 llms: say which one is trained",
        "one of other, policy",
    ),
    "no reward": (
        changed(("  reward_function: {name: outcome}\n", "")),
        "finetuning.reward_function",
        "makes groups of rewarded rollouts, but there is no reward",
        "name an evaluator: outcome",
    ),
    "no workflow": (
        changed(("workflow: {_type: answer, llm: policy, helper: answer}\n", "")),
        "workflow",
        "needs a workflow",
        "",
    ),
    "no examples": (
        changed(("    dataset: {_type: jsonl, file_path: data/train.jsonl}\n", "")),
        "eval.general.dataset",
        "needs examples",
        "",
    ),
}


@pytest.mark.parametrize(("text", "key", "message", "hint"), CASES.values(), ids=CASES)
def test_misfits_name_what_would_fit(tmp_path, text, key, message, hint):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    (problem,) = caught.value.problems
    assert problem.key == key
    assert message in problem.message
    assert hint in (problem.hint or "")
    assert problem.line is not None


def test_text_cannot_be_trained_as_tokens(tmp_path):
    """All misfits come at once: the endpoint returns no ids, and its weights are elsewhere."""
    text = changed(('policy: {_type: in_process, model: "builtin:tiny"}', "policy: {_type: endpoint, model: x}"))
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    keys = [problem.key for problem in caught.value.problems]
    assert keys == ["llms.policy", "finetuning.target_model"]
    assert "returns text without token ids" in caught.value.problems[0].message
    assert caught.value.problems[0].line == 3


def test_nothing_is_asked_of_a_config_that_does_not_train(tmp_path):
    load(tmp_path, changed(PAIRS[0], ("enabled: true", "enabled: false")))


def test_composition_asks_the_same(tmp_path):
    """`compose` checks configs that were made in Python, without places."""
    config = load(tmp_path, WHOLE).config
    finetuning = config.finetuning.model_copy(update={"trainer": "once"})
    with pytest.raises(ConfigError, match=r"^finetuning.trainer: trainers.once"):
        check_fit(config.model_copy(update={"finetuning": finetuning}))


SEVERAL = """reward_functions:
    - {name: outcome, weight: 2}
    - {name: short, condition: {requires: outcome, at_least: 0.5}}"""
TWO = (
    ("outcome: {_type: judge}", "outcome: {_type: judge}\n    short: {_type: judge}"),
    ("reward_function: {name: outcome}", SEVERAL),
)


def test_several_rewards_reach_what_is_trained(tmp_path):
    found = target_of(load(tmp_path, changed(*TWO)).config)
    condition = RewardCondition("outcome", at_least=0.5, otherwise=0.0)
    assert found.rewards == (RewardTerm("outcome", 2.0), RewardTerm("short", 1.0, condition))
    assert not found.rewards_apart
    assert target_of(load(tmp_path, WHOLE).config).rewards == (RewardTerm("outcome"),)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("reward_functions:", "reward_function: {name: outcome}\n  reward_functions:", "both set: give one of them"),
        ("{name: short, condition", "{name: outcome, condition", "condition.requires must be another evaluator than 'outcome'"),
        ("{name: short, condition: {requires: outcome, at_least: 0.5}}", "{name: outcome}", "names outcome twice"),
        ("requires: outcome", "requires: other", "eval.evaluators has no entry 'other'"),
        ("weight: 2", "weight: 0", "weight must not be 0"),
        ("name: short", "name: shrt", "eval.evaluators has no entry 'shrt'"),
        ("  target_model: policy", "  target_model: policy\n  watch: [short]", "watch names short, a reward"),
        ("  target_model: policy", "  target_model: policy\n  watch: [length]", "eval.evaluators has no entry 'length'"),
        (", at_least: 0.5", "", "at_least"),
    ],
)
def test_what_is_wrong_with_rewards_is_said(tmp_path, old, new, message):
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, changed(*TWO, (old, new)))


@pytest.mark.parametrize("metrics", ["", "metrics: [better]"])
def test_a_score_that_compares_rollouts_is_no_metric(tmp_path, metrics):
    source = (ROOT / "configs" / "grpo_reasoning_gym.yml").read_text(encoding="utf-8")
    ranked = source.replace(
        "evaluators:\n", "evaluators:\n    better: {_type: llm_judge, llm_name: policy, mode: ranking}\n", 1
    )
    ranked = ranked.replace("{name: correct}", "{name: better}")
    path = tmp_path / "c.yml"
    path.write_text(ranked)
    load_config(path, registry=Registry.installed())  # trained by a ranking, measured by others
    path.write_text(ranked.replace("metrics: [correct, format]", metrics))
    with pytest.raises(ConfigError, match="the same for every policy") as raised:
        load_config(path, registry=Registry.installed())
    assert [(problem.key, problem.hint) for problem in raised.value.problems] == [
        ("finetuning.test.metrics", "name others: correct, format")
    ]


def test_nobody_leaves_a_job_behind_that_ends_with_the_process(tmp_path, monkeypatch):
    monkeypatch.setattr(OnPolicyTrainerConfig, "detaches", lambda self: True)
    with pytest.raises(
        ConfigError, match=r"trainers\.fresh does not wait for its job, and a job of `_type: here` ends with this process"
    ):
        load(tmp_path, WHOLE)
    monkeypatch.setattr(HereConfig, "remote", True)
    load(tmp_path, WHOLE)
