"""What a plan needs to know of a config: its work, counted; and its speeds, measured on a few examples with the real model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nat_finetune.checks.plan import Speeds, Work
from nat_finetune.checks.small import first_examples, without_remote_updates, without_split
from nat_finetune.compose import Composition, compose, record_dataset_of
from nat_finetune.config.load import LoadedConfig, load_config
from nat_finetune.config.schema import EvaluationConfig, RunConfig
from nat_finetune.errors import ConfigError, NoTrainableSignal, Problem
from nat_finetune.finetune import finetune, new_run
from nat_finetune.interfaces import PolicyEvaluator
from nat_finetune.preflight.holdout import load_data
from nat_finetune.registry import Registry
from nat_finetune.report.progress import NullProgress
from nat_finetune.runstore import RunStore
from nat_finetune.steps.schedule import EpochSchedule
from nat_finetune.types import CandidateScored


async def work_of(loaded: LoadedConfig, registry: Registry) -> Work:
    """Count what a config asks for; its datasets are read, its model is not loaded unless an evaluator needs it.

    Raises:
        ConfigError: finetuning is not enabled.
        DataError: a dataset can't be read.
    """
    config = loaded.config
    finetuning = config.finetuning
    if record_dataset_of(config) is not None:
        key = f"trajectory_builders.{finetuning.trajectory_builder}"
        message = "trains on the records of its own dataset: there are no rollouts to count or to measure, and no plan"
        hint = "`nat-finetune run --budget 6h` ends the training in time; doctor says whether it fits the memory"
        raise ConfigError(Problem(message, key=key, file=str(loaded.path), hint=hint))
    if not finetuning.enabled or config.eval.general.dataset is None:
        message = "a plan is for a config that trains on rollouts: finetuning.enabled and eval.general.dataset"
        raise ConfigError(Problem(message, key="finetuning", file=str(loaded.path)))
    async with compose(config, registry) as parts:
        data = await load_data(config, parts, None)
        sizes: dict[str, dict[str, int]] = {"held_out": {}, "exact": {}}
        for side, settings in (("validation", finetuning.validation), ("test", finetuning.test)):
            if settings is not None:
                examples = len(data.validation if side == "validation" else data.test)
                exact = await _is_exact(parts, config, settings)
                sizes["exact" if exact else "held_out"][side] = examples if exact else examples * settings.generations
    trainer = config.trainers[str(finetuning.trainer)].model_dump()
    builder = config.trajectory_builders[str(finetuning.trajectory_builder)]
    if "num_runs" in trainer:  # collects everything, then trains
        passes, updates = (
            trainer["num_runs"] * trainer.get("num_rounds", 1),
            finetuning.num_epochs * trainer.get("num_rounds", 1),
        )
        validations = 1 + math.ceil(updates / finetuning.validation.interval) if finetuning.validation else 0
        return Work(len(data.train), builder.generations, passes, updates, sizes["held_out"], sizes["exact"], validations)
    schedule = EpochSchedule(finetuning, data.train)
    looked_at = range(schedule.total) if finetuning.validation else ()
    validated = sum(schedule.step(index).validated for index in looked_at)
    return Work(
        examples=len(data.train),
        generations=builder.generations,
        passes=finetuning.num_epochs,
        updates=schedule.total,
        held_out=sizes["held_out"],
        exact=sizes["exact"],
        validations=validated + 1 if finetuning.validation else 0,
    )


async def _is_exact(parts: Composition, config: RunConfig, settings: EvaluationConfig) -> bool:
    """Whether every metric is exact, so that an evaluation needs no rollouts."""
    names = settings.names(parts.target.reward_names or tuple(config.eval.evaluators))
    return all([isinstance(await parts.get_evaluator(name), PolicyEvaluator) for name in names])


async def measure(
    path: Path, overrides: Sequence[str], registry: Registry, folder: Path, *, work: Work, examples: int
) -> Speeds:
    """Run one step of the config on its first examples, with its real model, and see how long it takes.

    An update is taken to last in proportion to its rollouts; evaluations that are exact are measured on as many examples. Of
    an adapter whose jobs run elsewhere no update is measured: none is started.

    Raises:
        NatFinetuneError: the step did not reach its end.
    """
    small = [*overrides, "finetuning.enabled=true"]
    loaded = load_config(path, small, registry=registry)
    trainer = loaded.config.trainers[str(loaded.config.finetuning.trainer)]
    wanted = {"num_epochs": 1, "examples_per_step": examples}
    small += [f"finetuning.{key}={value}" for key, value in wanted.items() if key not in trainer.unhonoured]
    small += without_split(loaded.config)
    loaded = load_config(path, small, registry=registry)
    store = new_run(loaded, folder)
    report: Mapping[str, Any]
    try:
        in_small = without_remote_updates(first_examples(registry, examples))
        report = await finetune(loaded, in_small, store, NullProgress())
    except NoTrainableSignal:  # two examples may well be flat: collection is measured, the update is not
        report = store.read_json("report.json") or {"steps": []}
    return _speeds(loaded.config, store, report, work)


def _speeds(config: RunConfig, store: RunStore, report: Mapping[str, Any], work: Work) -> Speeds:
    rollouts = [rollout for _, rollout in store.rollouts(0) if rollout is not None]
    if not rollouts:
        raise NoTrainableSignal("not one rollout was measured: give --rollout-seconds")
    count, slots = len(rollouts), min(config.eval.general.max_concurrency, len(rollouts))
    calls = [call for rollout in rollouts for call in rollout.model_calls]
    trained = [step["seconds"]["update"] / step["rollouts"] for step in report["steps"] if step.get("update")]
    per_update = work.rollouts / work.updates
    names = sorted(path.stem for path in (store.folder / "evaluations").glob("*.json"))
    scored = [result for name in names if (result := store.evaluation(name)) is not None]
    exact = [result.seconds / len(result.clusters) for result in scored if result.clusters] if work.exact else []
    return Speeds(
        rollout_seconds=sum(step["seconds"].get("collect", 0.0) for step in report["steps"]) * slots / count,
        slots=slots,
        update_seconds=sum(trained) / len(trained) * per_update if trained else None,
        exact_seconds=sum(exact) / len(exact) if exact else None,
        calls=len(calls) / count,
        candidates=sum(isinstance(event, CandidateScored) for r in rollouts for event in r.events) / count,
        prompt_tokens=_mean_length([call.prompt_ids for call in calls], count),
        completion_tokens=_mean_length([call.completion_ids for call in calls], count),
    )


def _mean_length(ids: Sequence[Sequence[int] | None], rollouts: int) -> float | None:
    """Tokens of a rollout; None where a call does not say what its tokens are."""
    known = [len(each) for each in ids if each is not None]
    return sum(known) / rollouts if len(known) == len(ids) else None
