"""The benchmarks of the harness itself run at small sizes, and what they say fits together."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.source_tree import ROOT


def run(script, folder, *options):
    """Its output as JSON, and the page that it wrote into."""
    name = {"harness.py": "harness", "memory.py": "memory", "scale.py": "scale-groups"}[script]
    page = folder / "R.md"
    page.write_text(f"before\n<!-- {name}: begin -->\n<!-- {name}: end -->\nafter\n")
    output = folder / "out.json"
    command = [sys.executable, str(ROOT / "benchmarks" / script), "--output", str(output), "--results", str(page), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert output.is_file(), done.stderr
    return json.loads(output.read_text()), page.read_text()


def test_what_recording_costs(tmp_path):
    found, page = run("harness.py", tmp_path, "--repeat", "1")
    calls = {name: value for name, value in found.items() if name.startswith("model call")}
    assert len(calls) == 6
    assert all(0 < value < 100_000 for value in found.values())
    assert "| reward |" in page
    assert page.endswith("<!-- harness: end -->\nafter\n")


@pytest.mark.slow
def test_memory_is_looked_at_after_each_epoch(tmp_path):
    found, page = run("memory.py", tmp_path, "--epochs", "3")
    assert found["epochs"] == len(found["mib"]) == 3
    assert found["last_mib"] == found["early_mib"] > 100
    assert "| after epoch | 1 | 3 |" in page


def test_rollouts_become_groups_step_by_step(tmp_path):
    found, page = run("scale.py", tmp_path, "--source", "groups", "--sizes", "64", "600")
    assert [(row["candidates"], row["rows"]) for row in found["results"]] == [(64, 8), (600, 75)]
    assert "| 600 |" in page
