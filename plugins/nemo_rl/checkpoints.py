"""What a job of NeMo RL leaves: checkpoints with their `training_info.json`, losses in its log; how to convert a checkpoint."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nat_finetune.errors import BackendError

_FIGURE = re.compile(r"^\W*(?P<name>[A-Za-z][\w /-]*?)\s*:\s*(?P<value>[-+]?[\d.]+(?:e[-+]?\d+)?|nan|inf)\s*$", re.IGNORECASE)
_STEP = re.compile(r"=+ *Step +(?P<step>\d+)(?:/(?P<of>\d+))? *=+")
_RESULTS = re.compile(r"Training Results")
_OTHER = re.compile(r"Validation|Timing", re.IGNORECASE)
"""A part of the log whose figures are no losses."""
REASONS = (
    (
        re.compile(r"CUDA out of memory|OutOfMemoryError|CUDA error: out of memory", re.IGNORECASE),
        "the GPU's memory was not enough",
    ),
    (
        re.compile(r"Cluster resources may be insufficient", re.IGNORECASE),
        "the Ray cluster has fewer GPUs than `cluster` asks for",
    ),
    (re.compile(r"No space left on device"), "the disk is full"),
)
"""Lines of a log that say more than an exit code, and what they mean."""
LAST_LINES = 20
"""Of a log, for people."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder `step_N`: whole, for NeMo RL gives it this name when it is."""

    step: int
    folder: Path
    info: Mapping[str, Any]

    def number(self, name: str) -> float | None:
        """A figure of its `training_info.json`, with or without `val:`; None where it is not there or no finite number."""
        value = self.info.get(name, self.info.get(name.removeprefix("val:")))  # versions differ in the key
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def read_checkpoints(folder: Path) -> list[Checkpoint]:
    """All that are whole, by step; `tmp_step_N` and `old_step_N` are not.

    Raises:
        BackendError: one has no `training_info.json`, or it can't be read.
    """
    if not folder.is_dir():
        return []
    found = []
    for place in folder.iterdir():
        name = re.fullmatch(r"step_(\d+)", place.name)
        if name is not None and place.is_dir():
            found.append(Checkpoint(int(name[1]), place, _info(place / "training_info.json")))
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def newest_step(folder: Path) -> int:
    """The step of the newest whole checkpoint; 0: there is none."""
    names = (re.fullmatch(r"step_(\d+)", place.name) for place in folder.glob("step_*"))
    return max((int(name[1]) for name in names if name is not None), default=0)


def _info(path: Path) -> Mapping[str, Any]:
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BackendError(f"{path} can't be read: {error}; the checkpoint beside it is not whole") from error
    if not isinstance(info, dict):
        raise BackendError(f"{path}: expected a JSON object, found {type(info).__name__}")
    return info


def best_of(checkpoints: Sequence[Checkpoint], metric: str | None) -> Checkpoint | None:
    """The one with the lowest metric, of equal ones the last; the last of all where none has it. None: there is none."""
    known = [one for one in checkpoints if metric is not None and one.number(metric) is not None]
    if not known:
        return checkpoints[-1] if checkpoints else None
    lower = metric is not None and metric.endswith("_loss")
    return min(known, key=lambda one: ((one.number(metric or "") or 0.0) * (1 if lower else -1), -one.step))


def conversion(checkpoint: str, *, checkout: str, command: Sequence[str], kind: str, model: str, output: str) -> list[str]:
    """Shell lines that make a Hugging Face folder, or an adapter's, of a checkpoint; to be run where the job ran.

    Args:
        checkpoint: its folder `step_N`.
        checkout: NeMo RL's.
        command: what runs a script there.
        kind: `dtensor` or `megatron`, and with LoRA `dtensor lora` or `megatron lora`.
        model: the base model.
        output: folder to be made.
    """
    config, weights, tokenizer = (f"{checkpoint}/{name}" for name in ("config.yaml", "policy/weights", "policy/tokenizer"))
    run = list(command)
    if kind.startswith("megatron"):
        run = ["uv", "run", "--extra", "mcore"] if run == ["uv", "run"] else run
    scripts = {
        "dtensor": ["convert_dcp_to_hf.py", "--config", config, "--dcp-ckpt-path", weights],
        "megatron": ["convert_megatron_to_hf.py", "--config", config, "--megatron-ckpt-path", f"{weights}/iter_0000000"],
        "megatron lora": ["convert_lora_to_hf.py", "--base-ckpt", "MEGATRON_CHECKPOINT_OF_THE_BASE/iter_0000000"],
    }
    scripts["megatron lora"] += ["--adapter-ckpt", f"{weights}/iter_0000000", "--hf-model-name", model]
    copied = f"cp -r {shlex.quote(tokenizer)}/. {shlex.quote(output)}/"
    if kind not in scripts:
        # Automodel writes an adapter in peft's format, and NeMo RL has no converter for it.
        return [f"mkdir -p {shlex.quote(output)} && cp -r {shlex.quote(weights)}/model/. {shlex.quote(output)}/", copied]
    name, *flags = scripts[kind]
    line = shlex.join([*run, f"examples/converters/{name}", *flags, "--hf-ckpt-path", output])
    return [f"cd {shlex.quote(checkout)} && {line}", copied]


@dataclass(frozen=True, slots=True)
class Log:
    """What the log of a job says."""

    step: int | None
    """The optimiser step that it is at, counted from 1; None: it has not begun."""
    curve: tuple[Mapping[str, float], ...]
    """The losses of each step, as far as they were printed."""
    reason: str | None
    """Why it failed, where a line says so."""
    last: tuple[str, ...]


def read_log(text: str) -> Log:
    """Steps, losses and reasons of a log; lines that are none of these are fine."""
    curve: list[dict[str, float]] = []
    step, training, reason = None, False, None
    lines = text.splitlines()
    for line in lines:
        head = _STEP.search(line)
        if head is not None:
            step, training = (step or 0) + 1, False
        elif _RESULTS.search(line):
            training = True
            curve.append({})
        elif _OTHER.search(line):
            training = False
        elif training and (found := _FIGURE.match(line)) is not None and math.isfinite(value := float(found["value"])):
            curve[-1][found["name"].strip().lower().replace(" ", "_")] = value
        reason = reason or next((said for pattern, said in REASONS if pattern.search(line)), None)
    return Log(step, tuple(curve), reason, tuple(line.rstrip()[:300] for line in lines[-LAST_LINES:]))
