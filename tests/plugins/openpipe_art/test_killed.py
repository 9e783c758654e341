"""kill -9 at ten points of a run on an ART server: each update is made once, and finished rollouts are kept."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from nat_finetune.testing.art_server import art_app
from nat_finetune.testing.serving import serving
from tests.source_tree import ROOT

CONFIG = ROOT / "configs" / "grpo_tic_tac_toe_openpipe_art.yml"
EPOCHS, EXAMPLES = 2, 8
POINTS = {
    "registering": ("/register", 1),
    "preparing": ("/_prepare", 1),
    "the first rollouts": ("/v1/chat", 5),
    "in the middle of them": ("/v1/chat", 60),
    "before the update": ("/_get_step", 3),
    "the stream of the first update": ("/_train_model", 1),
    "the canary after it": ("/_get_step", 5),
    "the second rollouts": ("/v1/chat", 105),
    "the stream of the second update": ("/_train_model", 2),
    "near the end": ("/_get_step", 10),
}

pytestmark = pytest.mark.slow


def command(*arguments):
    return [sys.executable, "-m", "nat_finetune.cli.main", *arguments]


def overrides(folder, url):
    rows = (ROOT / "workflows/tic_tac_toe/data/game_train.jsonl").read_text().splitlines()[:EXAMPLES]
    (folder / "games.jsonl").write_text("\n".join(rows) + "\n")
    given = {
        "trainer_adapters.art.backend.port": url.rsplit(":", 1)[1],
        "trainer_adapters.art.lost_stream_seconds": 1,
        "functions.choose_move.style": "tiny",
        "eval.general.dataset.file_path": folder / "games.jsonl",
        "finetuning.validation": "null",
        "finetuning.test": "null",
        "finetuning.num_epochs": EPOCHS,
        "finetuning.examples_per_step": EXAMPLES,
        "finetuning.output_dir": folder / "runs",
    }
    return [part for key, value in given.items() for part in ("-o", f"{key}={value}")]


@pytest.mark.parametrize("number", range(len(POINTS)), ids=list(POINTS))
def test_a_killed_run_is_resumed(tmp_path, number):
    path, count = list(POINTS.values())[number]
    app = art_app(tmp_path / "art", ("0.4", "0.5")[number % 2], line_seconds=0.1)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with serving(app) as server:
        started = command("run", str(CONFIG), *overrides(tmp_path, server.url))
        with subprocess.Popen(started, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment) as process:
            while process.poll() is None and sum(path in request.path for request in server.requests) < count:
                time.sleep(0.01)
            assert process.poll() is None, process.stderr.read().decode()
            process.send_signal(signal.SIGKILL)
        trained_before = len(server.of("POST", "/_train_model"))
        (run,) = (tmp_path / "runs").iterdir()
        events = (run / "events.jsonl").read_text().splitlines() if (run / "events.jsonl").exists() else []
        done = subprocess.run(
            command("run", "--resume", str(run)), capture_output=True, text=True, check=False, env=environment
        )
        assert done.returncode == 0, done.stdout + done.stderr
        report = json.loads((run / "report.json").read_text())
        assert [update["step"] for update in report["backend"]] == list(range(EPOCHS))
        assert app.state.art.step({"project": "nat_finetune", "name": "tic_tac_toe"}) == EPOCHS, "none lost, none twice"
        kept = (run / "events.jsonl").read_text().splitlines()
        whole = [line for line in events if line.endswith("}")]
        assert [line for line in whole if line not in kept] == []
        again = len(server.of("POST", "/_train_model")) - EPOCHS
        assert again == (1 if path == "/_train_model" else 0), "an update is sent again only where the server dropped it"
        sent = f"{trained_before} train requests before, {again} sent again"
        print(f"\nkilled at {path} {count}: {sent}, {len(events)} rollouts kept")
