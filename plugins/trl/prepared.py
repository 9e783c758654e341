"""What a job reads, written before it starts: model, data, programs and `job.json`, in a folder that is whole or not there."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nat_finetune_plugins.trl.arguments import (
    common_arguments,
    group_arguments,
    item_arguments,
    optimiser_steps,
    pair_arguments,
)
from nat_finetune_plugins.trl.environment import TESTED
from nat_finetune_plugins.trl.rows import Encoded, Row, encode, too_long
from nat_finetune_plugins.trl.settings import DpoConfig, GroupsConfig, TRLTrainerAdapterConfig
from pydantic_core import to_json

from nat_finetune.data.seeds import derive_seed
from nat_finetune.errors import BackendError, ConfigError, NoTrainableSignal, OutputError, Problem
from nat_finetune.local.settings import LoopSettings, OptimiserSettings
from nat_finetune.types import Collection, Demonstration, HandOver, PreferencePair, Target

if TYPE_CHECKING:
    from nat_finetune.local.policy import LocalPolicy

MODEL, ADAPTER, DATA, TOLD = "model", "adapter", "data.jsonl", "job.json"
PROGRAMS = ("shared", "endpoint", "pairs", "demonstrations", "rollouts")
CANARIES = 4
"""Token sequences that TRL scores at the trained weights, to be scored again by the engine that takes them over."""
_PROGRAM = {"dpo": "pairs", "sft": "demonstrations"}


@dataclass(frozen=True, slots=True)
class Start:
    """What a job begins with."""

    config: TRLTrainerAdapterConfig
    policy: LocalPolicy
    target: Target
    seed: int
    run: Path
    """The run's folder."""
    reference: str | None
    """Folder of the reference policy as the job's folder sees it; None: an adapter's own beginning."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A folder that is ready."""

    folder: Path
    key: str
    program: str
    items: int
    tokens: int | None
    dropped: tuple[Any, ...]
    optimiser_steps: int


def prepare(start: Start, collection: Collection, folder: Path) -> Prepared:
    """Write all that a job reads, into a folder below `folder` with the step and the job's key in its name.

    Raises:
        NoTrainableSignal: no item is left.
        ConfigError, DataError: an item can't be encoded, or the parts of the config don't fit the data.
        OutputError: the folder can't be written.
    """
    work = collection.handed_over
    encoded = Encoded() if work is not None else _encoded(start, collection)
    told = _told_of_rollouts(start, work) if work is not None else _told_of_items(start, encoded, collection.step)
    told = {**_told_of_all(start), **told}
    key = _key(start, collection, told, encoded.rows)
    place = folder / f"{collection.step:05d}-{key[:12]}-read"
    if not (place / TOLD).is_file() or not (place / MODEL).is_dir():  # a job may be reading what is there
        _write(start, place, told, encoded.rows)
    items = len(work.examples) if work is not None else len(encoded.rows)
    tokens = None if work is not None else encoded.tokens
    return Prepared(place, key, program_of(start.config), items, tokens, tuple(encoded.dropped), len(told["rates"]))


def program_of(config: TRLTrainerAdapterConfig) -> str:
    """Which program runs."""
    return _PROGRAM.get(config.algorithm.name, "rollouts")


def _encoded(start: Start, collection: Collection) -> Encoded:
    config, policy = start.config, start.policy
    _require_kind(collection, config)
    encoded = encode(collection, policy.format, max_length=config.max_length or policy.max_context)
    if config.on_too_long == "fail":
        too_long(encoded.dropped)
    if not encoded.rows:
        raise NoTrainableSignal(
            f"step {collection.step}: of {len(collection.items)} items nothing can be trained on: all were dropped as too long"
        )
    return encoded


def _require_kind(collection: Collection, config: TRLTrainerAdapterConfig) -> None:
    """A config whose parts don't fit is refused before it runs; a trainer of a plugin may still mix them up."""
    kind = {"dpo": PreferencePair, "sft": Demonstration}.get(config.algorithm.name)
    if kind is None:
        message = "needs the whole training handed over, not items: use `_type: backend_trainer`"
        raise ConfigError(Problem(f"algorithm {config.algorithm.name} {message}", key="finetuning.trainer"))
    others = {type(item).__name__ for item in collection.items if not isinstance(item, kind)}
    if others:
        raise ConfigError(f"step {collection.step}: this algorithm trains on a {kind.__name__}, found {', '.join(others)}")


def _told_of_all(start: Start) -> dict[str, Any]:
    config, policy = start.config, start.policy
    names = [name for name in TESTED if name != "peft" or config.lora is not None]
    return {
        "adapter": ADAPTER if config.lora is not None else None,
        "reference": start.reference,
        "dtype": _name(policy),
        "seed": start.seed,
        "packages": names,
    }


def _told_of_items(start: Start, encoded: Encoded, step: int) -> dict[str, Any]:
    from nat_finetune.local.optimise import item_order

    config, rows = start.config, encoded.rows
    loop = LoopSettings(epochs=config.epochs, batch_size=config.batch_size)
    steps = list(item_order(len(rows), loop, derive_seed(start.seed, "update", step)))
    each = len(steps) // config.epochs
    own = pair_arguments(config.algorithm) if isinstance(config.algorithm, DpoConfig) else {"completion_only_loss": False}
    common = common_arguments(config, seed=start.seed, device=start.policy.device.type, dtype=_name(start.policy))
    return {
        "arguments": {**common, **item_arguments(config, len(rows)), **own, **config.overrides},
        "order": [steps[first : first + each] for first in range(0, len(steps), each)],
        "rates": _rates(config, len(steps)),
        "canary": [_canary(row) for row in rows[:CANARIES]],
    }


def _told_of_rollouts(start: Start, work: HandOver) -> dict[str, Any]:
    config, policy, algorithm = start.config, start.policy, start.config.algorithm
    if not isinstance(algorithm, GroupsConfig) or policy.sampling is None:
        raise ConfigError(Problem("this algorithm trains on items, not on rollouts of its own", key="algorithm.name"))
    own = group_arguments(
        config, algorithm, work, start.target, temperature=policy.sampling.temperature, longest=policy.sampling.max_tokens
    )
    common = common_arguments(config, seed=start.seed, device=policy.device.type, dtype=_name(policy))
    apart = algorithm.name == "gdpo"
    return {
        "arguments": {**common, **own, **config.overrides},
        "examples": [example.id for example in work.examples],
        "order": list(_example_order(work, start.seed)),
        "generations": work.generations,
        "rates": _rates(config, optimiser_steps(config, work, own)),
        "canary": [_fixed_canary(policy)],
        "apart": apart,
        "reward_names": list(start.target.reward_names) if apart else ["reward"],
        "several_segments": algorithm.several_segments,
        "stop_ids": list(policy.format.stop_ids),
        "context": policy.max_context,
        "max_batch": 256,
        "max_concurrency": 512,
        "service": _service(start.run),
    }


def _example_order(work: HandOver, seed: int) -> list[list[int]]:
    """Places of the examples of each update, as `on_policy_trainer` orders them.

    TRL takes steps of one size: a pass whose last step is short of examples is filled up with its first ones.
    """
    size, steps = work.examples_per_step, []
    for epoch in range(work.epochs):
        order = list(range(len(work.examples)))
        random.Random(derive_seed(seed, "order", epoch)).shuffle(order)
        order += order[: -len(order) % size]
        steps += [order[first : first + size] for first in range(0, len(order), size)]
    return steps


def _service(run: Path) -> dict[str, Any]:
    """How the rollout service is started: by our own Python, where this process stands, with the run's own config."""
    kept = {name: os.environ[name] for name in ("PYTHONPATH", "VIRTUAL_ENV") if name in os.environ}
    command = [sys.executable, "-m", "nat_finetune.cli.main", "serve-rollouts", str(run / "config.yml")]
    return {"command": command, "cwd": os.getcwd(), "environment": kept}


def _rates(config: TRLTrainerAdapterConfig, steps: int) -> list[float]:
    from nat_finetune.local.optimiser import learning_rate

    if config.warmup_steps >= steps and config.schedule != "constant":
        message = f"warmup_steps {config.warmup_steps} must be below the job's {steps} optimiser steps"
        raise ConfigError(Problem(message, key="trainer_adapters.NAME.warmup_steps"))
    settings = OptimiserSettings(
        config.learning_rate, schedule=config.schedule, warmup_steps=config.warmup_steps, total_steps=steps
    )
    return [learning_rate(settings, step) for step in range(steps)]


def _canary(row: Row) -> tuple[list[int], list[int]]:
    return row["prompt_ids"], row.get("chosen_ids") or row["completion_ids"]


def _fixed_canary(policy: LocalPolicy) -> tuple[list[int], list[int]]:
    """Tokens that any policy can read, the same in every job."""
    size = min(policy.vocabulary, 8)
    return [0], [token % size for token in range(1, 5)]


def _name(policy: LocalPolicy) -> str:
    return str(policy.dtype).removeprefix("torch.")


def _key(start: Start, collection: Collection, told: Mapping[str, Any], rows: Sequence[Row]) -> str:
    about = (collection.run_id, collection.step, start.policy.version, start.policy.digest, start.config.model_dump_json())
    digest = hashlib.sha256(repr(about).encode())
    digest.update(to_json({name: value for name, value in told.items() if name != "service"}))
    for row in rows:
        digest.update(to_json(row))
    return digest.hexdigest()


def _write(start: Start, folder: Path, told: Mapping[str, Any], rows: Sequence[Row]) -> None:
    from nat_finetune.local.export import export_adapter, export_base

    unfinished = folder.with_name(f"{folder.name}.unfinished")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.mkdir(parents=True)
        export_base(start.policy, unfinished / MODEL)
        if start.config.lora is not None:
            export_adapter(start.policy, unfinished / ADAPTER)
        with (unfinished / DATA).open("wb") as file:
            for row in rows:
                file.write(to_json(row) + b"\n")
        for name in PROGRAMS:
            program = files("nat_finetune_plugins.trl.scripts").joinpath(f"{name}.py.tmpl").read_text(encoding="utf-8")
            (unfinished / f"{name}.py").write_text(program, encoding="utf-8")
        (unfinished / TOLD).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        unfinished.rename(folder)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise OutputError(f"can't write what TRL is to read, {folder}: {error}; free space, then --resume") from error


def linked(source: Path, folder: Path) -> None:
    """The same files in another folder, without a copy where the disk can link.

    Raises:
        BackendError: there is nothing to link.
        OutputError: it can't be written.
    """
    if not source.is_dir():
        raise BackendError(f"{source} is gone: the weights in it can't be had again")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in source.iterdir():
            if path.is_file():
                _link(path, folder / path.name)
    except OSError as error:
        raise OutputError(f"can't write {folder}: {error}") from error


def _link(path: Path, place: Path) -> None:
    place.unlink(missing_ok=True)
    try:
        os.link(path, place)
    except OSError:
        shutil.copyfile(path, place)
