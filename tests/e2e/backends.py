"""The backends that the suites of kills and faults go through, each with its stand-in, a small run, and what it was given."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nat_finetune.testing.art_server import art_app
from nat_finetune.testing.nemo_server import NemoScript, nemo_app
from tests.e2e.remote import REHEARSAL
from tests.fixtures.rehearsal.rehearsal_server import rehearsal_app
from tests.source_tree import ROOT

SECRET = "not-for-any-file-4711"


@dataclass(frozen=True)
class Backend:
    """A backend, and a run against it that takes seconds."""

    name: str
    app: Callable[[Path], Any]
    config: Path
    options: Callable[[str, str, Path], list[str]]
    """Overrides, given where the adapter's services are, where the untrained model is, and a folder for data."""
    environment: dict[str, str]
    """Secrets, by variable."""
    submission: str
    """Of the request that starts a job."""
    started: Callable[[Path], int]
    """How many jobs there are, by the stand-in's folder: what must be 1 in the end."""


def _few(folder: Path, name: str, count: int) -> Path:
    path = folder / name
    rows = (ROOT / "workflows" / "tic_tac_toe" / "data" / name).read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(rows[:count]), encoding="utf-8")
    return path


def _rehearsal_options(services: str, model: str, folder: Path) -> list[str]:
    return [f"trainer_adapters.away.host={services}", f"llms.policy.base_url={model}/v1"]


def _nemo_options(services: str, model: str, folder: Path) -> list[str]:
    adapter = "trainer_adapters.customizer"
    return [
        f"llms.policy.base_url={model}/nim/base/v1",
        f"{adapter}.entity_host={services}",
        f"{adapter}.datastore_host={services}",
        f"{adapter}.hf_token=${{HF_TOKEN}}",
        f"{adapter}.poll_interval_seconds=0.01",
        f"eval.general.dataset.file_path={_few(folder, 'move_train_short.jsonl', 6)}",
        f"finetuning.test.dataset.file_path={_few(folder, 'move_test_short.jsonl', 3)}",
    ]


def _art_options(services: str, model: str, folder: Path) -> list[str]:
    ip, _, port = services.removeprefix("http://").partition(":")
    return [
        f"llms.policy.base_url={model}/v1",
        f"trainer_adapters.art.backend.ip={ip}",
        f"trainer_adapters.art.backend.port={port}",
        "trainer_adapters.art.backend.api_key=${ART_KEY}",
        "finetuning.num_epochs=1",
        "finetuning.validation=null",
        f"eval.general.dataset.file_path={_few(folder, 'game_train.jsonl', 4)}",
        f"finetuning.test.dataset.file_path={_few(folder, 'game_test.jsonl', 2)}",
    ]


def _listed(folder: Path, section: str) -> int:
    path = folder / "state.json"
    return len(json.loads(path.read_text())[section]) if path.exists() else 0


BACKENDS = (
    Backend(
        "rehearsal",
        rehearsal_app,
        REHEARSAL / "rehearsal.yml",
        _rehearsal_options,
        {"REHEARSAL_TOKEN": f"tok-{SECRET}", "REHEARSAL_KEY": f"sk-{SECRET}", "REHEARSAL_HOST": "http://127.0.0.1:9"},
        r"POST .*/v1/jobs$",
        lambda folder: _listed(folder, "jobs"),
    ),
    Backend(
        "nemo_customizer",
        lambda folder: nemo_app(
            folder, NemoScript(statuses=("created", "running", "completed"), deployment_statuses=("pending", "ready"))
        ),
        ROOT / "configs" / "dpo_tic_tac_toe_nemo_customizer.yml",
        _nemo_options,
        {"HF_TOKEN": f"hf-{SECRET}", "NIM_API_KEY": f"nim-{SECRET}"},
        r"POST .*/customization/jobs$",
        lambda folder: _listed(folder, "jobs"),
    ),
    Backend(
        "openpipe_art",
        art_app,
        ROOT / "configs" / "grpo_tic_tac_toe_openpipe_art.yml",
        _art_options,
        {"ART_KEY": f"art-{SECRET}"},
        r"POST .*/_train_model$",
        lambda folder: max((int(path.stem) for path in folder.glob("*/*/checkpoints/*.json")), default=0),
    ),
)
