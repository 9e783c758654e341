"""Planted faults are found, healthy configs raise no alarm."""

import sys

import pytest

from nat_finetune.checks.doctor.examine import examine
from nat_finetune.checks.doctor.finding import FINDINGS, Finding, Severity
from nat_finetune.registry import Registry
from tests.checks.doctor.faults import CONFIGS, DEEP, QUICK, ROOT, ROWS, SHIPPED, header_only, small_config

REGISTRY = Registry.installed()
HEALTHY = ("grpo_tic_tac_toe", "dpo_tic_tac_toe", "grpo_claims_review", "dpo_claims_review", "gdpo_tool_calling")


async def found_in(path, overrides=(), *, deep=False):
    result = await examine(path, list(overrides), REGISTRY, deep=deep)
    return {finding.id: finding for finding in reversed(result.findings)}


@pytest.mark.parametrize("fault", QUICK)
async def test_a_fault_that_the_config_shows(fault, tmp_path):
    wanted, overrides, *added = QUICK[fault]
    found = await found_in(small_config(tmp_path, None, *added), overrides)
    assert wanted in found, found
    assert found[wanted].severity is not Severity.NOTE
    healthy = await found_in(small_config(tmp_path))
    assert wanted not in healthy


@pytest.mark.parametrize("fault", DEEP)
async def test_a_fault_that_shows_when_it_is_tried(fault, tmp_path):
    wanted, overrides, *added = DEEP[fault]
    found = await found_in(small_config(tmp_path, None, *added), overrides, deep=True)
    assert wanted in found, found
    assert found[wanted].severity is not Severity.NOTE


@pytest.mark.parametrize("fault", SHIPPED)
async def test_a_fault_in_a_shipped_config(fault):
    name, wanted, overrides = SHIPPED[fault]
    few = {
        "gdpo_tool_calling": [],
        "dpo_tic_tac_toe": [],
        "grpo_claims_review": ["trajectory_builders.groups.num_generations=8"],
    }
    found = await found_in(CONFIGS / f"{name}.yml", [*overrides, *few[name]], deep=True)
    assert wanted in found, found
    assert found[wanted].severity is not Severity.NOTE


@pytest.mark.parametrize("name", HEALTHY)
async def test_no_false_alarm(name):
    result = await examine(CONFIGS / f"{name}.yml", [], REGISTRY)
    assert [finding for finding in result.findings if finding.severity is not Severity.NOTE] == []
    assert result.left_out == ()
    assert "method.fits" in {finding.id for finding in result.findings}


# ------------------------------------------------------------------------------------------------------------- data


async def test_held_out_examples_that_are_trained_on(tmp_path):
    test = [{**row, "id": f"test-{row['id']}"} for row in ROWS[:2]]
    config = small_config(tmp_path, test=test)
    given = ["finetuning.test={dataset: {_type: jsonl, file_path: test.jsonl}}"]
    given = [given[0].replace("test.jsonl", str(tmp_path / "test.jsonl"))]
    found = await found_in(config, given)
    assert found["data.leak"].severity is Severity.ERROR
    assert "2 held-out examples" in found["data.leak"].message
    allowed = await found_in(config, [*given, "finetuning.allow_leakage=true"])
    assert allowed["data.leak"].severity is Severity.WARNING


async def test_copies_and_contradictions(tmp_path):
    rows = [*ROWS, {**ROWS[0], "id": "copy"}, {**ROWS[1], "id": "other", "answer": "9"}]
    found = await found_in(small_config(tmp_path, rows))
    assert found["data.duplicates"].severity is Severity.WARNING
    assert "1 of 10" in found["data.duplicates"].message
    assert "of example 2" in found["data.contradiction"].message


async def test_examples_without_what_the_evaluator_needs(tmp_path):
    rows = [{"id": row["id"], "question": row["question"]} for row in ROWS]
    found = await found_in(small_config(tmp_path, rows), deep=True)
    assert found["reward.unknown"].severity is Severity.ERROR


# ------------------------------------------------------------------------------------------------------------ model


async def test_what_does_not_fit_is_not_loaded(tmp_path):
    model = header_only(tmp_path / "large", hidden=65_536, layers=80)
    overrides = [f"llms.policy.model={model}", "llms.policy.device=cpu", "trainer_adapters.here.learning_rate=1e-5"]
    result = await examine(small_config(tmp_path), overrides, REGISTRY)
    ids = {finding.id for finding in result.findings if finding.severity is Severity.ERROR}
    assert ids == {"memory.too-much"}
    assert any("they need what has an error above" in why for why in result.left_out)


async def test_a_rate_for_adapters_on_all_weights_of_a_large_model(tmp_path):
    model = header_only(tmp_path / "model", hidden=1024, layers=4)
    found = await found_in(small_config(tmp_path), [f"llms.policy.model={model}", "trainer_adapters.here.learning_rate=2e-4"])
    assert found["settings.learning-rate-high"].severity is Severity.WARNING
    assert "100 million" in found["settings.learning-rate-high"].message  # 32,000 x 1024 + 4 x (4 + 3 x 4) x 1024 x 1024


TRL = CONFIGS / "dpo_tic_tac_toe_trl.yml"


@pytest.mark.parametrize("deep", [False, True], ids=["quick", "deep"])
async def test_a_backend_that_is_not_there(deep, tmp_path):
    result = await examine(TRL, [f"trainer_adapters.trl.python={tmp_path / 'none'}"], REGISTRY, deep=deep, examples=1)
    found = {finding.id: finding for finding in result.findings}
    assert "none is no program on this machine" in found["backend.missing"].message
    assert found["backend.missing"].key == "trainer_adapters.trl.python"
    assert any("backend (trl_trainer_adapter) answer" in left for left in result.left_out)
    assert ("chat template, reward and rollouts" in result.looked_at) is deep  # they need no TRL


async def test_a_backend_that_says_that_it_can_not_train(tmp_path):
    result = await examine(TRL, [f"trainer_adapters.trl.python={sys.executable}"], REGISTRY, examples=1)
    found = {finding.id: finding for finding in result.findings}
    assert "trl: expected 1.16.*, found none" in found["backend.failed"].message
    assert "backend (trl_trainer_adapter)" in result.looked_at


async def test_another_method_where_the_configured_one_has_nothing(tmp_path):
    overrides = ["finetuning.watch=[]", "finetuning.reward_function.name=anything"]
    found = await found_in(small_config(tmp_path), overrides, deep=True)
    assert "SFT: 8 of 8 examples" in found["method.other"].message


# ------------------------------------------------------------------------------------------------------- the findings


async def test_a_finding_names_its_place(tmp_path):
    found = await found_in(small_config(tmp_path), ["finetuning.watch=[]"])
    assert found["unused.entry"].file.endswith("config.yml")
    assert found["unused.entry"].line == 10


def test_ids_are_known_and_documented():
    with pytest.raises(ValueError, match="no finding that is known"):
        Finding("made.up", Severity.NOTE, "", "")
    page = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    assert [id for id in FINDINGS if f"`{id}`" not in page] == []
