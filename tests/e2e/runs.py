"""Running the command line for real, in a process of its own, and stopping it anywhere."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]

SMALL = {
    "grpo_tic_tac_toe": [
        "finetuning.num_epochs=1",
        "finetuning.examples_per_step=2",
        "finetuning.deterministic=true",
        "finetuning.validation.interval_steps=1",
        "finetuning.validation.select=outcome",
        "trajectory_builders.groups.num_generations=4",
    ],
    "dpo_tic_tac_toe": [
        "finetuning.deterministic=true",
        "trajectory_builders.pairs.num_generations=1",
        "trainer_adapters.here.epochs=2",
        "trainer_adapters.here.batch_size=8",
    ],
    "dpo_claims_review": ["trainer_adapters.here.epochs=1", "trainer_adapters.here.batch_size=4"],
    "grpo_claims_review": [
        "finetuning.num_epochs=1",
        "finetuning.examples_per_step=3",
        "trajectory_builders.groups.num_generations=4",
    ],
}

DATA = {
    "grpo_tic_tac_toe": ("tic_tac_toe", "game_train", "game"),
    "dpo_tic_tac_toe": ("tic_tac_toe", "move_train", "move"),
    "dpo_claims_review": ("claims_review", "reviews_train", "claims"),
    "grpo_claims_review": ("claims_review", "claims_train", "claims"),
}
"""Workflow, file that is trained on, and what the held-out files' names begin with."""

KILL = """
import os, signal, sys
from importlib import import_module
module, owner, name, count = sys.argv[1:5]
target = getattr(import_module(module), owner)
original, calls = getattr(target, name), 0
def killing(*args, **kwargs):
    global calls
    calls += 1
    if calls == int(count):
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args, **kwargs)
setattr(target, name, killing)
from nat_finetune.cli.main import main
sys.argv = ["nat-finetune", *sys.argv[5:]]
main()
"""


def rows(path: Path, count: int, folder: Path) -> Path:
    """The first `count` rows of a dataset, as a file of their own."""
    small = folder / path.name
    small.write_text("".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[:count]), encoding="utf-8")
    return small


def small_config(name: str, folder: Path, *, train: int = 6, held_out: int = 4) -> list[str]:
    """Arguments of a run of a shipped config, shrunk to seconds."""
    workflow, trained, kind = DATA[name]
    data = ROOT / "workflows" / workflow / "data"
    source = "trajectory_builders.labels.dataset" if trained.startswith("reviews") else "eval.general.dataset"
    datasets = {
        source: rows(data / f"{trained}.jsonl", train, folder),
        "finetuning.validation.dataset": rows(data / f"{kind}_validation.jsonl", held_out, folder),
        "finetuning.test.dataset": rows(data / f"{kind}_test.jsonl", held_out, folder),
    }
    arguments = [str(ROOT / "configs" / f"{name}.yml"), "--output-dir", str(folder / "runs")]
    for override in [*SMALL[name], *(f"{key}.file_path={path}" for key, path in datasets.items())]:
        arguments += ["-o", override]
    return arguments


def cli(
    *arguments: str,
    kill: tuple[str, str, str, int] | None = None,
    timeout: float = 180,
    before: Callable[[], None] | None = None,
) -> subprocess.CompletedProcess[str]:
    """`nat-finetune ...`; `kill` is (module, class, method, n): kill -9 at the n-th call. `before` runs in the new process."""
    command = [sys.executable, "-m", "nat_finetune.cli.main", *arguments]
    if kill is not None:
        module, owner, method, count = kill
        command = [sys.executable, "-c", KILL, module, owner, method, str(count), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, check=False, env=environment, preexec_fn=before
    )


def only_run(folder: Path) -> Path:
    """The one run folder below `runs`."""
    (run,) = (folder / "runs").iterdir()
    return run
