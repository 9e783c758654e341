"""Which runs can be gone on with."""

from __future__ import annotations

import pytest

from nat_finetune.config.load import load_config
from nat_finetune.errors import ConfigError
from nat_finetune.finetune import continued_run, new_run
from nat_finetune.registry import Registry
from tests.source_tree import ROOT


def test_a_run_has_reached_its_end_once_its_report_says_so(tmp_path):
    """Killed between the last commit and the report, it goes on to the report; that of a run that detached is none."""
    registry = Registry.installed()
    store = new_run(load_config(ROOT / "configs" / "grpo_tic_tac_toe.yml", registry=registry), tmp_path)
    state = store.state()
    state.finished = True
    store.commit(state)
    for report in (None, {"exit_code": 7}):
        if report is not None:
            store.write_json("report.json", report)
        assert continued_run(store.folder, registry)[1].folder == store.folder
    store.write_json("report.json", {"exit_code": 0})
    with pytest.raises(ConfigError, match="this run has reached its end"):
        continued_run(store.folder, registry)
