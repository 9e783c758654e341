"""Whole runs by the command line: from a file of judgments to the report, and the jobs commands from other processes."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import yaml

from nat_finetune.testing.ray_server import RayServer
from nat_finetune.testing.serving import serving
from tests.plugins.nemo_rl.stock import behave, make_checkout, starts
from tests.source_tree import ROOT

TOKEN = "the-token-of-this-cluster"


@pytest.fixture
def checkout(tmp_path):
    return make_checkout(tmp_path / "rl")


def write_config(tmp_path, checkout, **adapter):
    labels = [{"prompt": f"move {n}", "chosen": f"take {n}", "rejected": "give up"} for n in range(12)]
    (tmp_path / "labels.jsonl").write_text("".join(f"{json.dumps(label)}\n" for label in labels))
    entry = {
        "_type": "nemo_rl_trainer_adapter",
        "checkout": str(checkout),
        "launch": {"name": "subprocess", "grace_seconds": 2},
        "model": "some-org/some-model",
        "algorithm": {"name": "dpo", "batch_size": 4},
        "learning_rate": 1e-6,
        "command": [f"{checkout}/uv", "run"],
        "poll_seconds": 0.05,
    }
    config = {
        "config_version": 1,
        "llms": {"policy": {"_type": "openai", "model_name": "some-org/some-model", "base_url": "http://127.0.0.1:9/v1"}},
        "trajectory_builders": {
            "labels": {
                "_type": "preference_dataset_builder",
                "dataset": {"_type": "jsonl", "file_path": str(tmp_path / "labels.jsonl")},
            }
        },
        "trainer_adapters": {"cluster": entry | adapter},
        "trainers": {"once": {"_type": "preference_trainer"}},
        "finetuning": {
            "enabled": True,
            "trajectory_builder": "labels",
            "trainer_adapter": "cluster",
            "trainer": "once",
            "output_dir": str(tmp_path / "runs"),
        },
    }
    path = tmp_path / "labels.yml"
    path.write_text(yaml.safe_dump(config))
    return path


def command(*arguments, **more):
    line = [sys.executable, "-m", "nat_finetune.cli.main", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"} | more
    return subprocess.run(line, capture_output=True, text=True, timeout=120, check=False, env=environment)


def the_run(tmp_path):
    (run,) = (tmp_path / "runs").iterdir()
    return run


def test_from_a_file_of_judgments_to_the_report(checkout, tmp_path):
    done = command("run", write_config(tmp_path, checkout, epochs=2, validation_share=0.25, save_every=1))
    assert done.returncode == 0, done.stdout + done.stderr
    run = the_run(tmp_path)
    report = json.loads((run / "report.json").read_text())
    told = json.dumps(report)
    assert "convert_dcp_to_hf.py" in told
    assert "val:validation-default_loss" in told
    assert "step_2" in told
    assert "convert_dcp_to_hf.py" in done.stdout
    assert "note: lengths were not checked" in done.stdout
    html = (run / "report.html").read_text()
    assert "convert_dcp_to_hf.py" in html
    assert len(starts(checkout)) == 1
    shown = json.loads(command("jobs", "list", tmp_path / "runs", "--json").stdout)
    assert len(shown) == 1
    assert "exit code 0" in json.dumps(shown)


@pytest.mark.slow
def test_what_would_train_nothing_ends_the_run_before_anything_starts(checkout, tmp_path):
    done = command("run", write_config(tmp_path, checkout, algorithm={"name": "dpo", "batch_size": 64}))
    assert done.returncode == 4, done.stdout + done.stderr
    assert "set algorithm.batch_size to 12 or less" in done.stdout + done.stderr
    assert starts(checkout) == []


@pytest.mark.slow
def test_the_reason_of_a_failure_reaches_console_and_report(checkout, tmp_path):
    behave(checkout, fail="oom")
    done = command("run", write_config(tmp_path, checkout))
    assert done.returncode == 6, done.stdout + done.stderr
    assert "the GPU's memory was not enough" in done.stdout + done.stderr
    assert "the GPU's memory was not enough" in (the_run(tmp_path) / "report.json").read_text()


@pytest.mark.slow
def test_killed_attached_and_looked_at_from_other_processes(checkout, tmp_path):
    behave(checkout, step_seconds=2.0)
    line = [sys.executable, "-m", "nat_finetune.cli.main", "run", str(write_config(tmp_path, checkout))]
    running = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not starts(checkout) and time.monotonic() < until:
        time.sleep(0.05)
    os.kill(running.pid, signal.SIGKILL)
    running.wait(10)
    run = the_run(tmp_path)
    status = command("jobs", "status", run)
    assert "running" in status.stdout, status.stdout + status.stderr
    done = command("jobs", "attach", run)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (run / "report.html").is_file()
    assert len(starts(checkout)) == 1
    logs = command("jobs", "logs", run)
    assert "Training Results" in logs.stdout


@pytest.mark.slow
def test_cancelled_from_another_process(checkout, tmp_path):
    behave(checkout, hang="at_start")
    line = [sys.executable, "-m", "nat_finetune.cli.main", "run", str(write_config(tmp_path, checkout))]
    running = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    until = time.monotonic() + 60
    while not starts(checkout) and time.monotonic() < until:
        time.sleep(0.05)
    cancelled = command("jobs", "cancel", the_run(tmp_path))
    assert cancelled.returncode == 0, cancelled.stdout + cancelled.stderr
    said, _ = running.communicate(timeout=60)
    assert running.returncode == 6, said
    assert "cancelled" in said


def test_on_ray_and_no_secret_in_any_file(checkout, tmp_path):
    with serving(RayServer(tmp_path / "ray", token=TOKEN).app()) as ray:
        launch = {"name": "ray_jobs", "url": ray.url, "token": "${RAY_KEY}"}
        path = write_config(tmp_path, checkout, launch=launch, env_vars=["HF_TOKEN"])
        secrets = {"RAY_KEY": TOKEN, "HF_TOKEN": "hf_not_for_any_file"}
        done = command("run", path, **secrets)
        assert done.returncode == 0, done.stdout + done.stderr
        status = command("jobs", "status", the_run(tmp_path), **secrets)
    assert "SUCCEEDED" in status.stdout, status.stdout + status.stderr
    texts = {"console": done.stdout + done.stderr + status.stdout + status.stderr}
    texts |= {str(file): file.read_text(errors="replace") for file in the_run(tmp_path).rglob("*") if file.is_file()}
    assert len(texts) > 10
    for secret in secrets.values():
        assert [name for name, text in texts.items() if secret in text] == []


@pytest.mark.slow
def test_gdpo_is_handed_the_whole_training(checkout, tmp_path):
    """`serve-rollouts` beside it; the fake `uv` keeps NeMo RL's rules for Gym and asks for no rollout."""
    shipped = yaml.safe_load((ROOT / "configs" / "gdpo_tool_calling_nemo_rl.yml").read_text())
    ready, path = tmp_path / "ready", tmp_path / "gdpo.yml"
    shipped["eval"]["general"]["dataset"]["file_path"] = str(ROOT / "workflows" / "tool_calling" / "data" / "train.jsonl")
    del shipped["finetuning"]["test"]
    shipped["finetuning"]["output_dir"] = str(tmp_path / "runs")
    cluster = shipped["trainer_adapters"]["cluster"]
    cluster |= {"checkout": str(checkout), "launch": {"name": "subprocess"}, "poll_seconds": 0.05}
    cluster |= {"command": [f"{checkout}/uv", "run"], "save_every": 5}
    path.write_text(yaml.safe_dump(shipped))
    line = [
        sys.executable,
        "-m",
        "nat_finetune.cli.main",
        "serve-rollouts",
        str(path),
        "--ready-file",
        str(ready),
        "--while-stdin",
    ]
    serving_them = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while not (ready.exists() and ready.read_text()) and time.monotonic() < until:
            time.sleep(0.05)
        cluster["algorithm"]["rollouts"]["url"] = json.loads(ready.read_text())["url"]
        path.write_text(yaml.safe_dump(shipped))
        done = command("run", path)
    finally:
        serving_them.stdin.close()
        serving_them.wait(20)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((the_run(tmp_path) / "report.json").read_text())
    (job,) = report["backend"]
    assert job["generations"] == 8
    assert job["losses"]["avg_reward"] > 0
    assert "step_" in job["output_model"]
    assert len(starts(checkout)) == 1


@pytest.mark.parametrize(
    ("trainer", "algorithm", "said"),
    [
        ("on_policy_trainer", {"name": "grpo", "rollouts": {"url": "http://127.0.0.1:9"}}, "use `_type: backend_trainer`"),
        ("backend_trainer", {"name": "dpo"}, "does not run rollouts"),
    ],
)
def test_the_trainer_must_fit_the_algorithm(checkout, tmp_path, trainer, algorithm, said):
    path = write_config(tmp_path, checkout, algorithm=algorithm)
    config = yaml.safe_load(path.read_text())
    config["trainers"]["once"] = {"_type": trainer}
    path.write_text(yaml.safe_dump(config))
    done = command("validate", path)
    assert done.returncode == 2
    assert said in done.stdout + done.stderr


def test_two_updates_are_refused_before_anything_is_collected(checkout, tmp_path):
    path = write_config(tmp_path, checkout)
    config = yaml.safe_load(path.read_text())
    config["finetuning"]["num_epochs"] = 2
    path.write_text(yaml.safe_dump(config))
    done = command("validate", path)
    assert done.returncode == 2
    assert "starts every update at the base model" in done.stdout + done.stderr
