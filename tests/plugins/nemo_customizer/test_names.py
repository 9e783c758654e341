"""Names that the service takes, whatever the run is called; what tells runs apart is never cut off."""

import re

import pytest
from nat_finetune_plugins.nemo_customizer.names import dataset_name, deployment_label, job_name

RUNS = ["run-1", "dpo_tic_tac_toe-20261130T115341976", "a--b..c", "Größe 1", "x" * 200 + "-20261130T115341976"]


@pytest.mark.parametrize("run", RUNS)
def test_names_fit(run):
    name = dataset_name("nat-dpo", run, "0123456789abcdef")
    assert len(name) <= 96
    assert re.fullmatch(r"[A-Za-z0-9_]+(([.-]|\.-|-\.)[A-Za-z0-9_]+)*", name), name
    assert name.startswith("nat-dpo-")
    assert name.endswith("-01234567")
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", deployment_label("nat-deployment", run))
    assert len(job_name(run, 0, "0123456789abcdef")) <= 63


def test_long_runs_stay_apart():
    one, other = ("x" * 200 + f"-2026113011534197{n}" for n in (6, 7))
    assert dataset_name("nat-dpo", one, "0" * 8) != dataset_name("nat-dpo", other, "0" * 8)
    assert deployment_label("nat-deployment", one) != deployment_label("nat-deployment", other)
    assert job_name(one, 0, "0" * 8) != job_name(other, 0, "0" * 8)


def test_a_stem_that_leaves_no_room_is_cut():
    assert len(dataset_name("d" * 200, "run", "0" * 8)) <= 96
