"""docs/plugins.md works as it stands: its files are written, its commands are run, in order, in an empty folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from tests.source_tree import ROOT

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
GUIDE = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8").partition("\n## Other kinds of plugins")[0]
BLOCKS = FENCE.findall(GUIDE)


@pytest.fixture
def reader(tmp_path):
    """Does what the guide says; `pip install -e .` puts the package into a folder instead of this environment."""
    tools = tmp_path / "bin"
    tools.mkdir()
    program = "import sys; from nat_finetune.cli.main import main; sys.exit(main())"
    (tools / "nat-finetune").write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{program}" "$@"\n')
    (tools / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    arguments = f'install --quiet --no-index --no-deps --no-build-isolation --target "{tmp_path}/installed" .'
    (tools / "pip").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pip {arguments}\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PYTHONPATH": f"{tmp_path}/installed",
        "PYTEST_ADDOPTS": "-p no:cacheprovider -p no:asyncio",
    }
    folder = tmp_path / "empty"
    folder.mkdir()

    def follow(blocks):
        where = folder
        for language, text in blocks:
            if language == "bash":
                done = subprocess.run(
                    ["bash", "-euc", text + "\npwd -P"], cwd=where, env=environment, capture_output=True, text=True, check=False
                )
                assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
                where = where / done.stdout.strip().rsplit("\n", 1)[-1]
            else:
                name = re.match(r"# (\S+)\n", text)
                assert name is not None, f"the block does not say which file it is:\n{text}"
                (where / name[1]).write_text(text, encoding="utf-8")
        return where

    return follow


def test_everything_but_the_training_works(reader):
    quick = [(language, text) for language, text in BLOCKS if not re.match(r"nat-finetune (run|validate)", text)]
    checked = [(language, "nat-finetune validate seats.yml\n") for language, text in BLOCKS if "validate seats.yml" in text]
    where = reader([*quick, *checked])
    assert len((where / "train.jsonl").read_text().splitlines()) == 48


@pytest.mark.slow
def test_the_whole_guide_ends_with_a_better_model(reader):
    where = reader(BLOCKS)
    report = json.loads(next(where.glob("runs/*/report.json")).read_text(encoding="utf-8"))
    assert report["exit_reason"] == "improved"
    assert report["metrics"]["near"]["after"]["mean"] > 0.9
