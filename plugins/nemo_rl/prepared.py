"""A job before it is started: its files, written whole or not at all, and what is known of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from nat_finetune_plugins.nemo_rl import grpo_job
from nat_finetune_plugins.nemo_rl.dpo_job import SCRIPT, dpo_yaml, plan_dpo
from nat_finetune_plugins.nemo_rl.job_config import CONFIG, TRAIN, VALIDATION, Place
from nat_finetune_plugins.nemo_rl.pair_files import MeasureLength, PairRules, pair_files
from nat_finetune_plugins.nemo_rl.settings import DpoConfig, GroupsConfig, NemoRLTrainerAdapterConfig

from nat_finetune.data.seeds import derive_seed
from nat_finetune.errors import ConfigError, OutputError
from nat_finetune.types import Collection, Dropped, PreferencePair, Target

Files = Mapping[str, bytes]
_LARGEST_SEED = 2**31


@dataclass(frozen=True, slots=True)
class Prepared:
    """What will be started."""

    script: str
    """Below the checkout."""
    files: Callable[[Place], Files]
    """By name below the job's folder, once it is known where that is."""
    digest: str
    """Hash of the data."""
    items: int
    dropped: tuple[Dropped, ...]
    about: Mapping[str, Any]
    """For the record: counts, steps, notes."""
    before: Callable[[Place], tuple[str, ...]] = lambda place: ()
    """What stands before the command that runs the script."""


def prepare_dpo(
    config: NemoRLTrainerAdapterConfig, algorithm: DpoConfig, collection: Collection, measure: MeasureLength | None, seed: int
) -> Prepared:
    """A DPO job on the collection's pairs.

    Raises:
        NoTrainableSignal: NeMo RL would train nothing.
        DataError: the pairs can't be written as the config wants it.
        ConfigError: this adapter has no warm-up.
    """
    if collection.warm_up:
        raise ConfigError("NeMo RL's DPO has no updates that only imitate: leave out sft_warmup_epochs, or set sft_loss_weight")
    rules = PairRules(
        config.max_length,
        fail_on_too_long=config.on_too_long == "fail",
        refuse_weights=config.pair_weights == "refuse",
        validation_share=config.validation_share,
        seed=derive_seed(seed, "nemo_rl", collection.step),
    )
    made = pair_files([item for item in collection.items if isinstance(item, PreferencePair)], rules, measure)
    plan = plan_dpo(config, algorithm, len(made.train), len(made.validation))
    notes = list(made.notes)
    if measure is None:
        notes.append(
            f"lengths were not checked: there is no tokenizer of {config.model} on this machine (give `tokenizer`); NeMo RL "
            f"trains nothing of pairs longer than max_length {config.max_length}, with a warning in its log"
        )
    if plan.left_out and config.max_steps is None:
        notes.append(f"{plan.left_out} pairs of each epoch fill no batch of {plan.batch} and are not trained in it")

    def files(place: Place) -> Files:
        config_file = dpo_yaml(config, algorithm, plan, place, seed=rules.seed % _LARGEST_SEED)
        rows = {TRAIN: made.train, VALIDATION: made.validation}
        data = {name: b"\n".join([*lines, b""]) for name, lines in rows.items() if lines}
        return {CONFIG: config_file.encode(), **data}

    about = {
        "pairs": plan.pairs,
        "validation_pairs": plan.validation,
        "batch_size": plan.batch,
        "steps": plan.steps,
        "metric": plan.metric,
        "lengths_checked": measure is not None,
        "notes": notes,
    }
    return Prepared(SCRIPT, files, made.digest, plan.pairs, made.dropped, about)


def prepare_groups(
    config: NemoRLTrainerAdapterConfig, algorithm: GroupsConfig, collection: Collection, target: Target, seed: int
) -> Prepared:
    """A GRPO or GDPO job on the collection's examples.

    Raises:
        ConfigError: the job's parts don't fit, or the run wants to run the rollouts itself.
    """
    given = collection.handed_over
    if given is None:
        raise ConfigError(f"algorithm {algorithm.name} runs the rollouts itself: use `_type: backend_trainer`")
    drawn = derive_seed(seed, "nemo_rl", collection.step) % _LARGEST_SEED

    def files(place: Place) -> Files:
        return grpo_job.group_files(config, algorithm, given, target, place, seed=drawn)

    def before(place: Place) -> tuple[str, ...]:
        return ("/bin/sh", place.path(grpo_job.INSTALL), grpo_job.gym_folder(algorithm, place))

    data = files(Place("/", "/"))[TRAIN]
    left_out = len(given.examples) % given.examples_per_step
    notes = [f"{left_out} examples of each epoch fill no step of {given.examples_per_step} and are not trained in it"]
    about = {
        "examples": len(given.examples),
        "examples_per_step": given.examples_per_step,
        "generations": given.generations,
        "steps": grpo_job.group_steps(config, given),
        "metric": None,
        "rollouts": algorithm.rollouts.url,
        "notes": notes if left_out else [],
    }
    digest = sha256(data + repr((given.epochs, given.examples_per_step, given.generations, target)).encode()).hexdigest()
    return Prepared(grpo_job.SCRIPT, files, digest, len(given.examples), (), about, before)


def write_files(folder: Path, files: Files) -> None:
    """The folder with all files, or none: one that is there already stays as it is, for a job may read it.

    Raises:
        OutputError: it can't be written.
    """
    if folder.is_dir():
        return
    beside = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        shutil.rmtree(beside, ignore_errors=True)
        for name, content in files.items():
            path = beside / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        beside.replace(folder)
    except OSError as error:
        shutil.rmtree(beside, ignore_errors=True)
        if not folder.is_dir():
            raise OutputError(f"{folder} can't be written: {error.strerror or error}; see `workspace`") from error


def length_measure(source: str) -> MeasureLength | None:
    """How many tokens a context and an answer have for a model; None where its tokenizer is not on this machine."""
    if not _is_here(source):
        return None
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=True)
    except (OSError, ValueError):
        return None
    if tokenizer.chat_template is None:
        return None

    def measure(context: Any, answer: str) -> int:
        messages = [*context, {"role": "assistant", "content": answer}]
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    return measure


def _is_here(source: str) -> bool:
    """Whether a tokenizer lies in a folder or in the hub's cache: asked before anything heavy is imported."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    if Path(source).is_dir():
        return True
    try:
        return isinstance(try_to_load_from_cache(source, "tokenizer_config.json"), str)
    except HFValidationError:
        return False
