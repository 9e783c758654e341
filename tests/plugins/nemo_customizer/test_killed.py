"""kill -9 at points of a whole run: resumed, it has its result, and nothing was submitted or deployed twice."""

import json
import os
import subprocess
import sys

import pytest

from nat_finetune.testing.nemo_server import NemoScript, nemo_app
from nat_finetune.testing.serving import serving
from tests.e2e.remote import KILL, MAIN
from tests.source_tree import ROOT

CONFIG = ROOT / "configs" / "dpo_tic_tac_toe_nemo_customizer.yml"
SECRETS = {"HF_TOKEN": "hf-4711-not-for-any-file", "NIM_API_KEY": "nim-0815-not-for-any-file"}
POINTS = [
    ("after-answer", "chat/completions", 70),
    ("after-answer", "/preupload/", 1),
    ("after-answer", "/commit/", 1),
    ("before-request", "POST /v1/datasets$", 1),
    ("before-request", "POST /v1/customization/jobs$", 1),
    ("after-answer", "POST /v1/customization/jobs$", 1),
    ("before-file", "jobs/00000", 2),
    ("after-answer", "/status$", 1),
    ("after-answer", "/status$", 4),
    ("before-request", "POST /v1/deployment/configs", 1),
    ("after-answer", "POST /v1/deployment/model-deployments", 1),
    ("after-answer", "/v1/models$", 1),
    ("before-file", "updates/00000", 1),
]


def in_small(folder, url):
    """Options that make the run small."""
    options = [f"trainer_adapters.customizer.{key}={url}" for key in ("entity_host", "datastore_host")]
    options += ["trainer_adapters.customizer.poll_interval_seconds=0.02", f"llms.policy.base_url={url}/nim/base/v1"]
    for key, name, count in (("eval.general", "train", 12), ("finetuning.test", "test", 8)):
        data = ROOT / "workflows" / "tic_tac_toe" / "data" / f"move_{name}_short.jsonl"
        (folder / f"{name}.jsonl").write_text("\n".join(data.read_text().splitlines()[:count]))
        options.append(f"{key}.dataset.file_path={folder}/{name}.jsonl")
    return [word for option in options for word in ("-o", option)]


@pytest.fixture
def cli(tmp_path):
    def run(*arguments, kill=None):
        script = [MAIN] if kill is None else [KILL, *map(str, kill)]
        done = subprocess.run(
            [sys.executable, "-c", *script, *arguments],
            env=os.environ | {"NO_PROXY": "127.0.0.1"} | SECRETS, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        with (tmp_path / "console.txt").open("a") as file:
            file.write(done.stdout + done.stderr)
        return done

    return run


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS, ids=lambda point: f"{point[0]} {point[1]}".replace("/", "_"))
def test_killed_and_resumed(tmp_path, cli, point):
    script = NemoScript(hf_token=SECRETS["HF_TOKEN"], large_from=2000)
    with serving(nemo_app(tmp_path / "nemo", script)) as server:
        begun = cli("run", str(CONFIG), "--output-dir", str(tmp_path / "runs"), *in_small(tmp_path, server.url), kill=point)
        assert begun.returncode == -9, begun.stdout + begun.stderr
        (run,) = (tmp_path / "runs").iterdir()
        resumed = cli("run", "--resume", str(run))
        assert resumed.returncode == 0, resumed.stdout + resumed.stderr
        posted = [request.path for request in server.requests if request.method == "POST"]
    state = json.loads((tmp_path / "nemo" / "state.json").read_text())
    assert (len(state["jobs"]), len(state["deployments"])) == (1, 1)
    if point[1] not in ("/preupload/", "POST /v1/datasets$", "POST /v1/customization/jobs$"):
        assert posted.count("/v1/customization/jobs") == 1
    report = json.loads((run / "report.json").read_text())
    assert report["metrics"]["legal_rate"]["after"]["mean"] == 1.0
    kept = [path for path in [*run.rglob("*"), tmp_path / "console.txt"] if path.is_file()]
    assert not [path for path in kept if any(secret.encode() in path.read_bytes() for secret in SECRETS.values())]
